"""The TPU kernel behind flash_relative_bias.py.

A block of rows meets all columns, and the bias stays on the chip.

Heads lie side by side in the last axis, W = N * H, as projections make and take them: an array [..,
H] of heads narrower than the 128 lanes would be padded in memory and moved to get there. A program
works on as many heads as fill the lanes.

A bias that depends only on the distance is one number per diagonal. The kernel spreads these
numbers over a block of rows by rolling each row one place further than the one above, and sums the
gradient by rolling the rows back.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from flaxformer_lite.nn.functions.kernels import MASKED
from flaxformer_lite.nn.functions.tuning import LANES

SUBLANES = 8  # rows of a register


class KernelPlan(NamedTuple):
    """The static options of the kernel."""

    scale: float
    left: int | None
    right: int | None
    biased: bool  # whether there is a bias
    block: int  # rows of a block
    head_dim: int  # H
    interpret: bool


def heads_together(N: int, H: int) -> int:
    """Returns how many heads a program works on: the fewest of N that fill whole lanes, or all."""
    return next(n for n in range(1, N + 1) if N % n == 0 and (n * H % LANES == 0 or n == N))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    plan: KernelPlan,
    q_BTW: jax.Array,
    k_BSW: jax.Array,
    v_BSW: jax.Array,
    diagonals_NL: jax.Array,
    q_ids_BT: jax.Array,
    k_ids_BS: jax.Array,
) -> jax.Array:
    """Attends with logits `scale q . k + diagonals[n, T - 1 + column - row]`.

    Rows see the columns of equal ids.

    The backward pass computes the weights again, with their sums, so it needs nothing but these
    arguments.

    Args:
      plan: static; its block divides T, and T and S are multiples of 128.
      q_BTW, k_BSW, v_BSW: heads side by side.
      diagonals_NL: float32, L = T + S; ignored unless `plan.biased`.
      q_ids_BT, k_ids_BS: int32; no row sees a column with a negative id.
    """
    return _forward(plan, q_BTW, k_BSW, v_BSW, diagonals_NL, q_ids_BT, k_ids_BS)[0]


def _forward(plan: KernelPlan, *arrays: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    grid, rows, columns, diagonals, ids = _blocks(plan, arrays)
    out_BTW = pl.pallas_call(
        functools.partial(_forward_kernel, plan),
        grid=grid,
        in_specs=[rows, columns, columns, diagonals, *ids],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(arrays[0].shape, arrays[2].dtype),
        interpret=plan.interpret,
        name="relative_fwd",
    )(*_shaped(arrays))
    return out_BTW, arrays


def _backward(
    plan: KernelPlan, arrays: tuple[jax.Array, ...], d_out_BTW: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, None, None]:
    grid, rows, columns, diagonals, ids = _blocks(plan, arrays)
    q_BTW, k_BSW, v_BSW, diagonals_NL = arrays[:4]
    sums = pltpu.VMEM(columns.block_shape[1:], jnp.float32)
    d_q, d_k, d_v, d_diagonals = pl.pallas_call(
        functools.partial(_backward_kernel, plan),
        grid=grid,
        in_specs=[rows, columns, columns, diagonals, *ids, rows],
        out_specs=[rows, columns, columns, diagonals],
        out_shape=[
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q_BTW, k_BSW, v_BSW)),
            jax.ShapeDtypeStruct(diagonals_NL[:, None].shape, jnp.float32),
        ],
        scratch_shapes=[sums, sums],
        interpret=plan.interpret,
        name="relative_bwd",
    )(*_shaped(arrays), d_out_BTW)
    return d_q, d_k, d_v, d_diagonals[:, 0], None, None


attend.defvjp(_forward, _backward)


def _forward_kernel(
    plan: KernelPlan,
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    diagonals_ref: jax.Ref,
    q_ids_ref: jax.Ref,
    k_ids_ref: jax.Ref,
    out_ref: jax.Ref,
) -> None:
    seen_TS = _seen(plan, q_ids_ref, k_ids_ref)
    for i, head in _heads(plan, q_ref):
        weights_TS = _weights(plan, q_ref[0, :, head], k_ref[0, :, head], diagonals_ref, i, seen_TS)
        v_SH = v_ref[0, :, head]
        out_TH = jnp.dot(weights_TS.astype(v_SH.dtype), v_SH, preferred_element_type=jnp.float32)
        out_ref[0, :, head] = out_TH.astype(out_ref.dtype)


def _backward_kernel(
    plan: KernelPlan,
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    diagonals_ref: jax.Ref,
    q_ids_ref: jax.Ref,
    k_ids_ref: jax.Ref,
    d_out_ref: jax.Ref,
    d_q_ref: jax.Ref,
    d_k_ref: jax.Ref,
    d_v_ref: jax.Ref,
    d_diagonals_ref: jax.Ref,
    d_k_sum_ref: jax.Ref,
    d_v_sum_ref: jax.Ref,
) -> None:
    example = pl.program_id(1)
    block = pl.program_id(2)

    @pl.when(block == 0)
    def _() -> None:
        d_k_sum_ref[...] = jnp.zeros_like(d_k_sum_ref)
        d_v_sum_ref[...] = jnp.zeros_like(d_v_sum_ref)

    @pl.when((example == 0) & (block == 0))
    def _() -> None:
        d_diagonals_ref[...] = jnp.zeros_like(d_diagonals_ref)

    seen_TS = _seen(plan, q_ids_ref, k_ids_ref)
    for i, head in _heads(plan, q_ref):
        q_TH, k_SH, v_SH, d_out_TH = (ref[0, :, head] for ref in (q_ref, k_ref, v_ref, d_out_ref))
        weights_TS = _weights(plan, q_TH, k_SH, diagonals_ref, i, seen_TS)
        d_v_sum_ref[:, head] += _outer(weights_TS.astype(v_SH.dtype), d_out_TH)
        d_weights_TS = _inner(d_out_TH, v_SH)
        d_scores_TS = weights_TS * (
            d_weights_TS - (weights_TS * d_weights_TS).sum(axis=-1, keepdims=True)
        )
        d_dots_TS = (d_scores_TS * plan.scale).astype(q_TH.dtype)
        d_q_TH = jnp.dot(d_dots_TS, k_SH, preferred_element_type=jnp.float32)
        d_q_ref[0, :, head] = d_q_TH.astype(d_q_ref.dtype)
        d_k_sum_ref[:, head] += _outer(d_dots_TS, q_TH)
        if plan.biased:
            start, length = _diagonals_of(plan, d_scores_TS.shape[1], diagonals_ref.shape[-1])
            d_diagonals_ref[i, :, pl.ds(start, length)] += _gathered(d_scores_TS, plan.block)

    @pl.when(block == pl.num_programs(2) - 1)
    def _() -> None:
        d_k_ref[0] = d_k_sum_ref[...].astype(d_k_ref.dtype)
        d_v_ref[0] = d_v_sum_ref[...].astype(d_v_ref.dtype)


def _heads(plan: KernelPlan, ref: jax.Ref) -> list[tuple[int, slice]]:
    """Lists the heads of a program, with their lanes."""
    H = plan.head_dim
    return [(i, slice(i * H, (i + 1) * H)) for i in range(ref.shape[-1] // H)]


def _seen(plan: KernelPlan, q_ids_ref: jax.Ref, k_ids_ref: jax.Ref) -> jax.Array:
    t = plan.block
    S = k_ids_ref.shape[-1]
    seen_TS = q_ids_ref[0] == k_ids_ref[0]
    ahead_TS = lax.broadcasted_iota(jnp.int32, (t, S), 1) - lax.broadcasted_iota(
        jnp.int32, (t, S), 0
    )
    ahead_TS -= pl.program_id(2) * t
    if plan.left is not None:
        seen_TS &= ahead_TS >= -plan.left
    if plan.right is not None:
        seen_TS &= ahead_TS <= plan.right
    return seen_TS


def _weights(
    plan: KernelPlan,
    q_TH: jax.Array,
    k_SH: jax.Array,
    diagonals_ref: jax.Ref,
    i: int,
    seen_TS: jax.Array,
) -> jax.Array:
    """Computes the weights of a block of rows; all are zero in a row that sees nothing."""
    t, S = seen_TS.shape
    scores_TS = _inner(q_TH, k_SH) * plan.scale
    if plan.biased:
        start, length = _diagonals_of(plan, S, diagonals_ref.shape[-1])
        scores_TS += _spread(diagonals_ref[i, :, pl.ds(start, length)], t, S)
    top_T1 = jnp.where(seen_TS, scores_TS, MASKED).max(axis=-1, keepdims=True)
    weights_TS = jnp.where(seen_TS, jnp.exp(scores_TS - top_T1), 0.0)
    total_T1 = weights_TS.sum(axis=-1, keepdims=True)
    return weights_TS / jnp.where(total_T1 > 0, total_T1, 1.0)


def _diagonals_of(plan: KernelPlan, S: int, count: int) -> tuple[jax.Array, int]:
    """Returns the first diagonal that a block of rows needs, and how many.

    Both are multiples of the lanes.
    """
    return pl.multiple_of(count - S - (pl.program_id(2) + 1) * plan.block, LANES), S + plan.block


def _spread(diagonals_1L: jax.Array, t: int, S: int) -> jax.Array:
    """Spreads diagonals to [t, S], entry (r, c) = diagonals[t - 1 - r + c]."""
    length = diagonals_1L.shape[1]
    rows_TL = jnp.broadcast_to(diagonals_1L, (t, length))
    return pltpu.roll(rows_TL, length - (t - 1), 1, stride=1, stride_axis=0)[:, :S]


def _gathered(x_TS: jax.Array, t: int) -> jax.Array:
    """Sums along diagonals, [1, S + t], the transpose of `_spread`.

    Row r moves t - 1 - r places to the right. As many rows as a register has move together, by as
    far as the last of them has to, and are added up; only their sum is moved row by row.
    """
    S = x_TS.shape[1]
    sums_RL = jnp.zeros((SUBLANES, S + t), x_TS.dtype)
    space = jnp.zeros((SUBLANES, t), x_TS.dtype)
    for first in range(0, t, SUBLANES):
        rows_RS = x_TS[first : first + SUBLANES]
        rows_RL = jnp.concatenate([rows_RS, space], axis=1)
        sums_RL += pltpu.roll(rows_RL, t - SUBLANES - first, 1)
    places_R1 = SUBLANES - 1 - lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0)
    for bit in range((SUBLANES - 1).bit_length()):
        moves_R1 = (places_R1 >> bit) & 1 == 1
        sums_RL = jnp.where(moves_R1, pltpu.roll(sums_RL, 1 << bit, 1), sums_RL)
    return sums_RL.sum(axis=0, keepdims=True)


def _inner(a_TH: jax.Array, b_SH: jax.Array) -> jax.Array:
    return lax.dot_general(a_TH, b_SH, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _outer(a_TS: jax.Array, b_TH: jax.Array) -> jax.Array:
    return lax.dot_general(a_TS, b_TH, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _shaped(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Gives diagonals and ids the axis of size one that a block of them needs."""
    *qkv, diagonals_NL, q_ids_BT, k_ids_BS = arrays
    return *qkv, diagonals_NL[:, None], q_ids_BT[..., None], k_ids_BS[:, None]


def _blocks(plan: KernelPlan, arrays: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    """Returns the grid and the block shapes.

    The grid is (groups of heads, examples, blocks of rows); the blocks are those of rows, columns,
    diagonals and ids.
    """
    B, T, W = arrays[0].shape
    S = arrays[1].shape[1]
    t = plan.block
    heads = heads_together(W // plan.head_dim, plan.head_dim)
    width = heads * plan.head_dim
    rows = pl.BlockSpec((1, t, width), lambda n, b, i: (b, i, n))
    columns = pl.BlockSpec((1, S, width), lambda n, b, i: (b, 0, n))
    diagonals = pl.BlockSpec((heads, 1, T + S), lambda n, b, i: (n, 0, 0))
    ids = (
        pl.BlockSpec((1, t, 1), lambda n, b, i: (b, i, 0)),
        pl.BlockSpec((1, 1, S), lambda n, b, i: (b, 0, 0)),
    )
    # Heads first and rows last, as the gradient of the diagonals is summed over all steps of a
    # group of heads, and that of the columns over all blocks of rows.
    return (W // width, B, T // t), rows, columns, diagonals, ids
