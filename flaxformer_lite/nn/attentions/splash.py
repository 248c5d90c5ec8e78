"""JAX's splash kernel for TPUs: blockwise attention in one program.

It skips blocks that the mask rules out.

The kernel takes the structure of a mask, not an array: causal and sliding windows are static,
packed documents and padding are ids beside the tokens. `unsupported_reason` says which calls it
cannot take.

Reference: jax.experimental.pallas.ops.tpu.splash_attention; Dao et al. 2022 (arXiv:2205.14135).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

from flaxformer_lite.nn.attentions import arguments
from flaxformer_lite.nn.attentions.dispatch import is_interpreted, unsupported_platform
from flaxformer_lite.nn.attentions.mask_structure import (
    Structure,
    check_supported,
    structure_of,
    unsupported_arguments,
)
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.device_ops import ATTENTION
from flaxformer_lite.nn.functions.kernels import TPU_LANES

PLATFORM = "tpu"
COMPARED_ROWS = 128  # rows compared with all columns at a time
# Queries and keys of a block. A step of the kernel's grid costs some 500 cycles besides its
# products: forwards and backwards, Llama 3 8B's attention takes 10.0 ms for a row of 8192 tokens on
# v6e with the largest block and 13.8 with the next, by the compiler's schedule.
BLOCKS = (1024, 512, 384, 256, 128)
AT_ONCE = 512  # keys of a block that are multiplied at once
HIDDEN_ID = -(2**31)  # the id of columns that no row sees
WIDEST_BYTES = 256  # bytes of a head's numbers for which the largest block fits into on-chip memory


def attend(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments, /
) -> jax.Array:
    """Computes `dense.attend` by a fused kernel on each device's own rows and heads.

    See there for the arguments.

    On other devices than TPUs the kernel is interpreted, which is only for tests.

    Raises:
      ConfigError: the kernel cannot take this call, for the reason that `unsupported_reason` gives.
      ValueError: shapes that do not fit each other.
    """
    resolved = args.resolve(q_BTNH, k_BSKH, v_BSKH)
    structure = check_supported("splash", unsupported_reason(q_BTNH, k_BSKH, v_BSKH, args), args)
    kernel = functools.partial(
        _attend, (structure.left, structure.right), args.softcap, is_interpreted(args.sharding)
    )
    # JAX's kernel has no scale of its own.
    q_BTNH = (q_BTNH * resolved.scale).astype(q_BTNH.dtype)
    out_BTNH = args.sharding.per_shard(kernel, ("BTNH", "BSKH", "BSKH", "BT", "BS", "N"), "BTNH")(
        q_BTNH, k_BSKH, v_BSKH, *_ids_of(structure), args.sinks_N
    )
    sees_BT = _sees(structure, resolved.mask, q_BTNH.shape[1], k_BSKH.shape[1])
    return _zero_unseeing(out_BTNH, sees_BT)


def unsupported_reason(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments
) -> str:
    """Returns why the kernel cannot take this call, or an empty string."""
    if args.bias is not None:
        return "the kernel adds no bias"
    reason = unsupported_platform("TPUs", ("tpu", "cpu"), args.sharding)
    if reason:
        return reason
    if structure_of(args.mask) is None:
        return "the mask is not an intersection of windows, documents and padding"
    return unsupported_arguments(args)


Window = tuple[int | None, int | None]


def _ids_of(structure: Structure) -> tuple[jax.Array | None, jax.Array | None]:
    """Assigns ids to rows and columns: a row sees columns of equal id.

    Hidden columns get an id of their own.
    """
    q_BT, k_BS, keep_BS = structure[2:]
    if q_BT is None and keep_BS is None:
        return None, None
    if q_BT is None:
        assert keep_BS is not None
        return jnp.ones((len(keep_BS), 1), jnp.int32), keep_BS.astype(jnp.int32)
    if k_BS is None:
        k_BS = q_BT
    visible_BS = k_BS != 0
    if keep_BS is not None:
        visible_BS = visible_BS & keep_BS
    return q_BT.astype(jnp.int32), jnp.where(visible_BS, k_BS, HIDDEN_ID).astype(jnp.int32)


def _pad(x: jax.Array, axis: int, fill: int = 0) -> jax.Array:
    """Pads an axis to a multiple of TPU_LANES."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % TPU_LANES)
    return jnp.pad(x, widths, constant_values=fill)


def _attend(
    window: Window,
    softcap: float,
    interpret: bool,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    q_ids: jax.Array | None,
    k_ids: jax.Array | None,
    sinks_N: jax.Array | None,
) -> jax.Array:
    """Pads to whole blocks and runs the kernel on each example, on one device."""
    B, T, _, _ = q_BTNH.shape
    S = k_BSKH.shape[1]
    # Padded columns must be hidden, and ids are all that the kernel takes besides a static mask.
    if S % TPU_LANES and k_ids is None:
        q_ids = k_ids = jnp.ones((B, 1), jnp.int32)
    q = _pad(jnp.swapaxes(q_BTNH, 1, 2), 2)
    k = _pad(jnp.swapaxes(k_BSKH, 1, 2), 2)
    v = _pad(jnp.swapaxes(v_BSKH, 1, 2), 2)
    ids = None
    if q_ids is not None and k_ids is not None:
        q_ids = jnp.broadcast_to(q_ids, (B, T))
        k_ids = jnp.broadcast_to(k_ids, (B, S))
        ids = splash_attention_kernel.SegmentIds(_pad(q_ids, 1), _pad(k_ids, 1, HIDDEN_ID))
    kernel = _kernel(window, q, k.shape[2], softcap, interpret)
    # The kernel takes one example.
    out = jax.vmap(kernel, in_axes=(0, 0, 0, 0, None))(q, k, v, ids, sinks_N)
    return jnp.swapaxes(out[:, :, :T], 1, 2).astype(v_BSKH.dtype)


def _kernel(
    window: Window, q_BNTH: jax.Array, S: int, softcap: float, interpret: bool
) -> Callable[..., jax.Array]:
    _, N, T, H = q_BNTH.shape
    is_wide = H * q_BNTH.dtype.itemsize > WIDEST_BYTES
    # A larger block computes more that a window does not see.
    is_sliding = window not in ((None, None), (None, 0))
    largest = BLOCKS[1] if is_wide or is_sliding else BLOCKS[0]
    q_block = next(size for size in BLOCKS if size <= largest and T % size == 0)
    k_block = next(size for size in BLOCKS if size <= largest and S % size == 0)
    at_once = min(k_block, AT_ONCE)
    sizes = splash_attention_kernel.BlockSizes(
        block_q=q_block,
        block_kv=k_block,
        block_kv_compute=at_once,
        block_q_dkv=q_block,
        block_kv_dkv=k_block,
        block_kv_dkv_compute=at_once,
        block_q_dq=q_block,
        block_kv_dq=k_block,
    )
    return splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([_mask(window, (T, S))] * N),
        block_sizes=sizes,
        # per_shard has already split the heads and the rows.
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=softcap or None,
        interpret=interpret,
        residual_checkpoint_name=ATTENTION,
    )


def _mask(window: Window, shape: tuple[int, int]) -> splash_attention_mask.Mask:
    if window == (None, None):
        return splash_attention_mask.FullMask(shape)
    if window == (None, 0):
        return splash_attention_mask.CausalMask(shape)
    return splash_attention_mask.LocalMask(shape, window, offset=0)


def _sees(structure: Structure, mask: masks.Mask | None, T: int, S: int) -> jax.Array | None:
    """Returns which rows see anything, [B or 1, T], or None if all do.

    A few rows at a time are compared with all columns.
    """
    # Each row sees itself.
    if structure.keep_BS is None and structure.k_segments_BS is None and S >= T:
        if structure.q_segments_BT is None:
            return None
        return structure.q_segments_BT != 0
    seen = masks.full() if mask is None else mask
    columns_S = jnp.arange(S, dtype=jnp.int32)
    extra = -T % COMPARED_ROWS
    blocks = jnp.arange(T + extra, dtype=jnp.int32).reshape(-1, min(COMPARED_ROWS, T + extra))
    found = jax.lax.map(lambda rows_T: seen(rows_T, columns_S).any(axis=-1), blocks)
    return jnp.moveaxis(found, 0, 1).reshape(found.shape[1], -1)[:, :T]


def _zero_unseeing(out_BTNH: jax.Array, sees_BT: jax.Array | None) -> jax.Array:
    """Returns zero for rows that see nothing, and stops their gradient.

    For them kernels return the mean of hidden values. `sees_BT` is what `_sees` returns.
    """
    if sees_BT is None:
        return out_BTNH
    return jnp.where(sees_BT[:, :, None, None], out_BTNH, 0)
