"""The TPU kernel behind flash_relative_bias.py: a block of rows meets all columns, and the bias stays on the chip.

A bias that depends only on the distance is one number per diagonal. The kernel spreads these numbers over a block of
rows by rolling each row one place further than the one above, and sums the gradient by rolling the rows back.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from flaxformer_lite.functions.kernels import MASKED
from flaxformer_lite.functions.saved import ATTENTION, named

BLIND = 1e30  # the log of the sum for a row that sees nothing: subtracting it makes every weight zero


class Plan(NamedTuple):
    """The static options of the kernel: scale, window, rows of a block, interpreted or not."""

    scale: float
    left: int | None
    right: int | None
    block: int
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    plan: Plan, q_BNTH: jax.Array, k_BNSH: jax.Array, v_BNSH: jax.Array, diagonals_NL: jax.Array,
    q_ids_BT: jax.Array, k_ids_BS: jax.Array,
) -> jax.Array:  # fmt: skip
    """Attends with logits `scale q . k + diagonals[n, T - 1 + column - row]` between rows and columns of equal ids.

    Args:
      plan: static; its block divides T, and T and S are multiples of 128.
      q_BNTH, k_BNSH, v_BNSH: heads first.
      diagonals_NL: float32, L = T + S.
      q_ids_BT, k_ids_BS: int32; no row sees a column with a negative id.
    """
    return _forward(plan, q_BNTH, k_BNSH, v_BNSH, diagonals_NL, q_ids_BT, k_ids_BS)[0]


def _forward(plan: Plan, *arrays: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    q_BNTH, k_BNSH, v_BNSH, diagonals_NL, q_ids_BT, k_ids_BS = arrays
    (B, N, T, H), S, t = q_BNTH.shape, k_BNSH.shape[2], plan.block
    rows, columns = _row_spec(t, H), _column_spec(S, H)
    out_BNTH, lse_BNT1 = pl.pallas_call(
        functools.partial(_forward_kernel, plan),
        grid=(N, B, T // t),
        in_specs=[rows, columns, columns, _diagonal_spec(T + S), *_id_specs(t, S)],
        out_specs=[rows, _row_spec(t, 1)],
        out_shape=[jax.ShapeDtypeStruct(q_BNTH.shape, v_BNSH.dtype), jax.ShapeDtypeStruct((B, N, T, 1), jnp.float32)],
        interpret=plan.interpret,
        name="relative_fwd",
    )(q_BNTH, k_BNSH, v_BNSH, diagonals_NL[:, None], q_ids_BT[..., None], k_ids_BS[:, None])
    out_BNTH, lse_BNT1 = named(ATTENTION, out_BNTH, lse_BNT1)
    return out_BNTH, (*arrays, out_BNTH, lse_BNT1)


def _backward(plan: Plan, saved: tuple[jax.Array, ...], d_out_BNTH: jax.Array) -> tuple[Any, ...]:
    q_BNTH, k_BNSH, v_BNSH, diagonals_NL, q_ids_BT, k_ids_BS, out_BNTH, lse_BNT1 = saved
    (B, N, T, H), S, t = q_BNTH.shape, k_BNSH.shape[2], plan.block
    delta_BNT1 = (d_out_BNTH.astype(jnp.float32) * out_BNTH.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    rows, columns, scalars, diagonals = _row_spec(t, H), _column_spec(S, H), _row_spec(t, 1), _diagonal_spec(T + S)
    d_q, d_k, d_v, d_diagonals = pl.pallas_call(
        functools.partial(_backward_kernel, plan),
        grid=(N, B, T // t),
        in_specs=[rows, columns, columns, diagonals, *_id_specs(t, S), rows, scalars, scalars],
        out_specs=[rows, columns, columns, diagonals],
        out_shape=[
            jax.ShapeDtypeStruct(q_BNTH.shape, q_BNTH.dtype),
            *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (k_BNSH.shape, v_BNSH.shape, (N, 1, T + S))),
        ],
        interpret=plan.interpret,
        name="relative_bwd",
    )(q_BNTH, k_BNSH, v_BNSH, diagonals_NL[:, None], q_ids_BT[..., None], k_ids_BS[:, None], d_out_BNTH, lse_BNT1,
      delta_BNT1)  # fmt: skip
    return d_q, d_k.astype(k_BNSH.dtype), d_v.astype(v_BNSH.dtype), d_diagonals[:, 0], None, None


attend.defvjp(_forward, _backward)


def _forward_kernel(
    plan: Plan, q_ref: Any, k_ref: Any, v_ref: Any, diagonals_ref: Any, q_ids_ref: Any, k_ids_ref: Any, out_ref: Any,
    lse_ref: Any,
) -> None:  # fmt: skip
    scores_TS, seen_TS = _scores(plan, q_ref, k_ref, diagonals_ref, q_ids_ref, k_ids_ref)
    top_T1 = scores_TS.max(axis=-1, keepdims=True)
    weights_TS = jnp.where(seen_TS, jnp.exp(scores_TS - top_T1), 0.0)
    total_T1 = weights_TS.sum(axis=-1, keepdims=True)
    sees_T1 = total_T1 > 0
    v_SH = v_ref[0, 0]
    out_TH = jnp.dot(weights_TS.astype(v_SH.dtype), v_SH, preferred_element_type=jnp.float32)
    out_ref[0, 0] = (out_TH / jnp.where(sees_T1, total_T1, 1.0)).astype(out_ref.dtype)
    lse_ref[0, 0] = jnp.where(sees_T1, top_T1 + jnp.log(jnp.where(sees_T1, total_T1, 1.0)), BLIND)


def _backward_kernel(
    plan: Plan, q_ref: Any, k_ref: Any, v_ref: Any, diagonals_ref: Any, q_ids_ref: Any, k_ids_ref: Any, d_out_ref: Any,
    lse_ref: Any, delta_ref: Any, d_q_ref: Any, d_k_ref: Any, d_v_ref: Any, d_diagonals_ref: Any,
) -> None:  # fmt: skip
    example, block = pl.program_id(1), pl.program_id(2)

    @pl.when(block == 0)
    def _() -> None:
        d_k_ref[...] = jnp.zeros_like(d_k_ref)
        d_v_ref[...] = jnp.zeros_like(d_v_ref)

    @pl.when((example == 0) & (block == 0))
    def _() -> None:
        d_diagonals_ref[...] = jnp.zeros_like(d_diagonals_ref)

    q_TH, k_SH, v_SH, d_out_TH = (ref[0, 0] for ref in (q_ref, k_ref, v_ref, d_out_ref))
    scores_TS, seen_TS = _scores(plan, q_ref, k_ref, diagonals_ref, q_ids_ref, k_ids_ref)
    weights_TS = jnp.where(seen_TS, jnp.exp(scores_TS - lse_ref[0, 0]), 0.0)
    d_v_ref[0, 0] += _outer(weights_TS.astype(v_SH.dtype), d_out_TH)
    d_scores_TS = weights_TS * (_inner(d_out_TH, v_SH) - delta_ref[0, 0])
    d_dots_TS = (d_scores_TS * plan.scale).astype(q_TH.dtype)
    d_q_ref[0, 0] = jnp.dot(d_dots_TS, k_SH, preferred_element_type=jnp.float32).astype(d_q_ref.dtype)
    d_k_ref[0, 0] += _outer(d_dots_TS, q_TH)
    start, length = _diagonals_of(plan, scores_TS.shape[1], diagonals_ref.shape[-1])
    d_diagonals_ref[0, :, pl.ds(start, length)] += _gathered(d_scores_TS, plan.block)


def _scores(
    plan: Plan, q_ref: Any, k_ref: Any, diagonals_ref: Any, q_ids_ref: Any, k_ids_ref: Any
) -> tuple[jax.Array, jax.Array]:
    """Computes the logits of a block of rows, MASKED where hidden, and which are visible."""
    t, S = plan.block, k_ref.shape[2]
    start, length = _diagonals_of(plan, S, diagonals_ref.shape[-1])
    bias_TS = _spread(diagonals_ref[0, :, pl.ds(start, length)], t, S)
    scores_TS = _inner(q_ref[0, 0], k_ref[0, 0]) * plan.scale + bias_TS
    seen_TS = q_ids_ref[0] == k_ids_ref[0]
    ahead_TS = lax.broadcasted_iota(jnp.int32, (t, S), 1) - lax.broadcasted_iota(jnp.int32, (t, S), 0)
    ahead_TS -= pl.program_id(2) * t
    if plan.left is not None:
        seen_TS &= ahead_TS >= -plan.left
    if plan.right is not None:
        seen_TS &= ahead_TS <= plan.right
    return jnp.where(seen_TS, scores_TS, MASKED), seen_TS


def _diagonals_of(plan: Plan, S: int, count: int) -> tuple[Any, int]:
    """Returns the first diagonal that a block of rows needs, and how many; both are multiples of the lanes."""
    return pl.multiple_of(count - S - (pl.program_id(2) + 1) * plan.block, 128), S + plan.block


def _spread(diagonals_1L: jax.Array, t: int, S: int) -> jax.Array:
    """Spreads diagonals to [t, S], entry (r, c) = diagonals[t - 1 - r + c]."""
    length = diagonals_1L.shape[1]
    rows_TL = jnp.broadcast_to(diagonals_1L, (t, length))
    return pltpu.roll(rows_TL, length - (t - 1), 1, stride=1, stride_axis=0)[:, :S]


def _gathered(x_TS: jax.Array, t: int) -> jax.Array:
    """Sums along diagonals, [1, S + t], the transpose of `_spread`; row r moves t - 1 - r places to the right."""
    x_TL = jnp.concatenate([x_TS, jnp.zeros((t, t), x_TS.dtype)], axis=1)
    places_T1 = t - 1 - lax.broadcasted_iota(jnp.int32, (t, 1), 0)
    for bit in range((t - 1).bit_length()):
        x_TL = jnp.where((places_T1 >> bit) & 1 == 1, pltpu.roll(x_TL, 1 << bit, 1), x_TL)
    return x_TL.sum(axis=0, keepdims=True)


def _inner(a_TH: jax.Array, b_SH: jax.Array) -> jax.Array:
    return lax.dot_general(a_TH, b_SH, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _outer(a_TS: jax.Array, b_TH: jax.Array) -> jax.Array:
    return lax.dot_general(a_TS, b_TH, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _row_spec(t: int, width: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, t, width), lambda n, b, i: (b, n, i, 0))


def _column_spec(S: int, H: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, S, H), lambda n, b, i: (b, n, 0, 0))


def _diagonal_spec(length: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, length), lambda n, b, i: (n, 0, 0))


def _id_specs(t: int, S: int) -> list[pl.BlockSpec]:
    return [pl.BlockSpec((1, t, 1), lambda n, b, i: (b, i, 0)), pl.BlockSpec((1, 1, S), lambda n, b, i: (b, 0, 0))]
