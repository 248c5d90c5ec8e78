"""A TPU kernel for biases of distance (T5's buckets, ALiBi), with their gradient.

Nothing is held for all pairs.

JAX's flash kernel takes a bias only as an array of batch x heads x T x S; this one takes one number
per diagonal. It also attends without a bias where heads are narrower than the lanes, as splash
would have them padded and moved in memory.

Reference: Raffel et al. 2020, section 2.1 (arXiv:1910.10683); Dao et al. 2022 (arXiv:2205.14135).
"""

import functools

import jax
import jax.numpy as jnp

from flaxformer_lite.contrib.tpu_kernels import flash_relative_bias_kernel
from flaxformer_lite.contrib.tpu_kernels.flash_relative_bias_kernel import heads_together
from flaxformer_lite.nn.attentions import arguments, splash
from flaxformer_lite.nn.attentions.arguments import is_by_distance
from flaxformer_lite.nn.attentions.dispatch import is_interpreted
from flaxformer_lite.nn.attentions.mask_structure import check_supported, structure_of
from flaxformer_lite.nn.functions.tuning import ATTENTION, BEFORE_V5, LANES, QKV, name_arrays

PLATFORM = "tpu"
LONGEST = 2048  # columns: a block of rows meets all of them at once, in the memory of one core
BLOCKS = (512, 256, LANES)  # rows that are taken at once
PAIRS = 2 * 2**20  # of rows and columns of all heads of a program, which fit into on-chip memory
WIDEST = 512  # numbers of a row that a program takes, of all its heads
# bytes of the keys of a program: with values, gradients and sums they fill 12 of a core's 16 MiB
COLUMNS = 2**20


def attend(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments, /
) -> jax.Array:
    """Computes `dense.attend` by a fused kernel on each device's own rows and heads.

    See there for the arguments.

    Args:
      args: a bias has a method `of_distance` (nn/positions/encoding.py), as it depends only on the
        distance.

    Raises:
      ConfigError: the kernel cannot take this call, for the reason that `unsupported_reason` gives.
      ValueError: shapes that do not fit each other.
    """
    resolved = args.resolve(q_BTNH, k_BSKH, v_BSKH)
    structure = check_supported(
        "flash_relative_bias", unsupported_reason(q_BTNH, k_BSKH, v_BSKH, args), args
    )
    bias = args.bias
    T = q_BTNH.shape[1]
    S = k_BSKH.shape[1]
    padded = T + -T % LANES, S + -S % LANES
    if is_by_distance(bias):
        diagonals_NL = bias.of_distance(q_BTNH, *padded)
    else:
        diagonals_NL = jnp.zeros((q_BTNH.shape[2], sum(padded)))
    static = resolved.scale, structure.left, structure.right, bias is not None
    kernel = functools.partial(_attend, static, is_interpreted(args.sharding))
    on_devices = args.sharding.per_shard(kernel, ("BTNH", "BSKH", "BSKH", "N", "BT", "BS"), "BTNH")
    return on_devices(q_BTNH, k_BSKH, v_BSKH, diagonals_NL, *splash.ids_of(structure))


def unsupported_reason(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: arguments.Arguments
) -> str:
    """Returns why the kernel cannot take this call, or an empty string."""
    if not (args.bias is None or is_by_distance(args.bias)):
        return "the kernel needs a bias that depends only on the distance"
    if args.bias is not None and args.sharding.device_kind.startswith(BEFORE_V5):
        return "chips before v5 cannot roll each row of a bias by another number of places"
    if args.softcap:
        return "the kernel has no soft cap"
    if args.sinks_N is not None:
        return "the kernel has no sinks"
    if q_BTNH.shape[2] != k_BSKH.shape[2] or k_BSKH.shape != v_BSKH.shape:
        return "the kernel has no grouped heads, and needs values as wide as keys"
    if k_BSKH.shape[1] > LONGEST:
        return f"more than {LONGEST} columns"
    reason = splash.unsupported_on_tpu(args)
    if reason:
        return reason
    N, H = q_BTNH.shape[2:]
    shards = args.sharding.num_shards("N").count
    # heads that do not divide stay together
    heads = N if N % shards else N // shards
    width = heads_together(heads, H) * H
    if width > WIDEST:
        return f"no few heads of width {H} fill whole lanes"
    padded_width = width + -width % LANES
    padded_length = k_BSKH.shape[1] + -k_BSKH.shape[1] % LANES
    if padded_width * padded_length * k_BSKH.dtype.itemsize > COLUMNS:
        return (
            f"too many columns for the memory of a core, of as few heads of width {H} as fill whole"
            " lanes"
        )
    structure = structure_of(args.mask)
    windowed = structure is not None and structure[:2] != (None, None)
    if args.bias is None and (windowed or H % LANES == 0):
        return (
            "without a bias, splash suits windows, which it does not compute whole, and heads that"
            " fill the lanes"
        )
    return ""


def _attend(
    static: tuple[float, int | None, int | None, bool],
    interpret: bool,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    diagonals_NL: jax.Array,
    q_ids: jax.Array | None,
    k_ids: jax.Array | None,
) -> jax.Array:
    """Pads to whole blocks and runs the kernel, on one device.

    The diagonals are those of the padded lengths.
    """
    B, T, _, H = q_BTNH.shape
    S = k_BSKH.shape[1]
    if q_ids is None:
        q_ids = jnp.int32(0)
    if k_ids is None:
        k_ids = jnp.int32(0)
    q_ids = jnp.broadcast_to(q_ids, (B, T))
    k_ids = jnp.broadcast_to(k_ids, (B, S))
    # Named as the kernel takes them, for a policy that keeps them: with the heads apart they would
    # be padded.
    joined = [x.reshape(*x.shape[:2], -1) for x in (q_BTNH, k_BSKH, v_BSKH)]
    q, k, v = (splash.pad(x, 1) for x in name_arrays(QKV, *joined))
    plan = flash_relative_bias_kernel.KernelPlan(*static, _block(q, k, H), H, interpret)
    ids = splash.pad(q_ids, 1), splash.pad(k_ids, 1, splash.HIDDEN)
    out_BTW = flash_relative_bias_kernel.attend(
        plan, q, k, v, diagonals_NL.astype(jnp.float32), *ids
    )
    return name_arrays(ATTENTION, out_BTW[:, :T]).reshape(q_BTNH.shape)


def _block(q_BTW: jax.Array, k_BSW: jax.Array, H: int) -> int:
    """Returns how many rows the kernel takes at once: the most that fit beside the columns."""
    _, S, W = k_BSW.shape
    heads = heads_together(W // H, H)
    if heads * H * S * k_BSW.dtype.itemsize > COLUMNS // 2:
        return LANES
    largest = max(LANES, PAIRS // (heads * S))
    return next(size for size in BLOCKS if size <= largest and q_BTW.shape[1] % size == 0)
