"""cuDNN's fused attention for NVIDIA GPUs, through `jax.nn.dot_product_attention`.

The kernel takes the structure of a mask, not an array: causal masks and windows to the left are
static, and padding is one length per example. Only a bias is read for all pairs.
`unsupported_reason` says which calls it cannot take.

Reference: Dao et al. 2022 (arXiv:2205.14135); jax.nn.dot_product_attention.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.attentions import arguments
from flaxformer_lite.nn.attentions.arguments import Bias, is_by_distance
from flaxformer_lite.nn.attentions.dispatch import unsupported_platform
from flaxformer_lite.nn.attentions.mask_structure import (
    check_supported,
    structure_of,
    unsupported_arguments,
)

PLATFORM = "gpu"
# tests put JAX's own "xla" in its place, which runs anywhere
KERNEL: Literal["cudnn", "xla"] = "cudnn"
DTYPES = ("bfloat16", "float16")
MIN_COMPUTE_CAPABILITY = 8.0  # compute capability
MAX_HEAD_DIM = 128  # widest head; Hopper takes 256, but a described GPU does not say that it is one
MAX_BIAS_PAIRS = 2**28  # largest bias to hold; beyond it, blocks are computed as they are needed


def attend(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments, /
) -> jax.Array:
    """Computes `dense.attend` by a fused kernel on each device's own rows and heads.

    See there for the arguments.

    Args:
      args: the bias is an array or comes from an encoding of distances; it is rounded to the dtype
        of the queries.

    Raises:
      ConfigError: the kernel cannot take this call, for the reason that `unsupported_reason` gives.
      ValueError: shapes that do not fit each other.
    """
    resolved = args.resolve(q_BTNH, k_BSKH, v_BSKH)
    structure = check_supported("cudnn", unsupported_reason(q_BTNH, k_BSKH, v_BSKH, args), args)
    bias = args.bias
    letters = "BNTS"
    if is_by_distance(bias):
        bias = bias.of_distance(q_BTNH, q_BTNH.shape[1], k_BSKH.shape[1])
        letters = "N"
    elif bias is not None and not callable(bias):
        bias = jnp.broadcast_to(bias, (len(bias), q_BTNH.shape[2], *bias.shape[2:]))
    kernel = functools.partial(_attend, resolved.scale, structure.left, structure.right)
    on_devices = args.sharding.per_shard(kernel, ("BTNH", "BSKH", "BSKH", letters, "BS"), "BTNH")
    return on_devices(q_BTNH, k_BSKH, v_BSKH, bias, structure.keep_BS)


def unsupported_reason(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments
) -> str:
    """Returns why the kernel cannot take this call, or an empty string."""
    T = q_BTNH.shape[1]
    S = k_BSKH.shape[1]
    H = q_BTNH.shape[3]
    reason = unsupported_platform("NVIDIA GPUs", ("gpu",), args.sharding) or _unsupported_device()
    if reason:
        return reason
    if q_BTNH.dtype not in DTYPES or not q_BTNH.dtype == k_BSKH.dtype == v_BSKH.dtype:
        return f"{q_BTNH.dtype}; cuDNN takes bfloat16 and float16"
    if H % 8 or H > MAX_HEAD_DIM or v_BSKH.shape[3] != H:
        most = f"up to {MAX_HEAD_DIM}"
        return f"head_dim {H}; cuDNN takes multiples of 8 {most}, the same for keys and values"
    if T % 2 or S % 2:
        return f"lengths {T} and {S}; cuDNN's gradient takes even ones"
    if args.softcap:
        return "the kernel has no soft cap"
    if args.sinks_N is not None:
        return "the kernel has no sinks"
    return (
        unsupported_arguments(args) or _bias_unfit(q_BTNH, S, args.bias) or _mask_unfit(T, S, args)
    )


def _unsupported_device() -> str:
    """Returns why the present devices cannot run the kernel.

    Devices that a plan describes are assumed to be new.
    """
    if jax.default_backend() != "gpu":
        return ""
    device = jax.devices()[0]
    if "cuda" not in device.client.platform_version.lower():
        return "the kernel is for NVIDIA GPUs"
    oldest = float(getattr(device, "compute_capability", MIN_COMPUTE_CAPABILITY))
    if oldest < MIN_COMPUTE_CAPABILITY:
        return (
            f"compute capability {oldest}; cuDNN's kernel takes {MIN_COMPUTE_CAPABILITY} and newer"
        )
    return ""


def _bias_unfit(q_BTNH: jax.Array, S: int, bias: Bias | jax.Array | None) -> str:
    if callable(bias) and not is_by_distance(bias):
        return "the bias is neither an array nor a function of distance"
    if bias is not None and q_BTNH.shape[1] * S * q_BTNH.shape[2] > MAX_BIAS_PAIRS:
        return "the bias of all pairs is too large"
    return ""


def _mask_unfit(T: int, S: int, args: arguments.Arguments) -> str:
    structure = structure_of(args.mask)
    if structure is None:
        return "the mask is not an intersection of a window and padding"
    if structure.q_segments_BT is not None:
        return "packed documents; cuDNN separates examples, not documents"
    left = structure.left
    right = structure.right
    if right not in (None, 0) or (right is None and left is not None):
        return "the window extends to the right"
    if right == 0 and T != S:
        return f"a causal mask over {T} rows and {S} columns"
    if structure.keep_BS is not None and (right == 0 or args.bias is not None):
        return (
            "padding beside a causal mask or a bias; cuDNN takes lengths, and padding may stand"
            " anywhere"
        )
    return ""


def _attend(
    scale: float,
    left: int | None,
    right: int | None,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    bias: jax.Array | None,
    keep_BS: jax.Array | None,
) -> jax.Array:
    """Runs the kernel on one device.

    Without causality and bias, column order is free: the columns to keep come first.
    """
    B, T, _, _ = q_BTNH.shape
    S = k_BSKH.shape[1]
    lengths_B = None
    if keep_BS is not None:
        keep_BS = jnp.broadcast_to(keep_BS, (B, S))
        order_BS = jnp.argsort(~keep_BS, axis=1, stable=True)
        k_BSKH = _reordered(k_BSKH, order_BS)
        v_BSKH = _reordered(v_BSKH, order_BS)
        lengths_B = keep_BS.sum(axis=1, dtype=jnp.int32)
    if bias is not None:
        if bias.ndim == 2:
            bias = _whole(bias, T, S)
        bias = bias.astype(q_BTNH.dtype)
    # An example without any column is given one, as a softmax over none has no value; its rows are
    # set to zero below.
    out_BTNH: jax.Array = jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        bias=bias,
        scale=scale,
        is_causal=right == 0,
        implementation=KERNEL,
        local_window_size=None if left is None else (left, 0),
        key_value_seq_lengths=None if lengths_B is None else jnp.maximum(lengths_B, 1),
    )
    if lengths_B is None:
        return out_BTNH
    return jnp.where((lengths_B > 0)[:, None, None, None], out_BTNH, 0)


def _reordered(x_BSKH: jax.Array, order_BS: jax.Array) -> jax.Array:
    """Permutes rows; indices are declared unique, so the gradient is written, not accumulated."""
    examples_B1 = jnp.arange(len(x_BSKH), dtype=order_BS.dtype)[:, None]
    return x_BSKH.at[examples_B1, order_BS].get(mode="promise_in_bounds", unique_indices=True)


def _whole(diagonals_NL: jax.Array, T: int, S: int) -> jax.Array:
    """Expands diagonals to [1, N, T, S], entry (t, s) = diagonals[T - 1 + s - t], L = T + S.

    The diagonals are repeated with period L and cut into rows of L - 1, each starting one entry
    earlier. The gradient is then a sum, not a scatter.
    """
    N, L = diagonals_NL.shape
    text_NX = jnp.broadcast_to(diagonals_NL[:, None], (N, T, L)).reshape(N, T * L)
    return text_NX[:, T - 1 : T - 1 + T * (L - 1)].reshape(1, N, T, L - 1)[..., :S]
