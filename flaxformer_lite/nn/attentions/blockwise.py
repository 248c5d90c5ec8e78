"""Scaled dot-product attention one block at a time.

Memory is linear in the length, forward and backward.

A row keeps its largest logit so far, the sum of its exponentials and the sum of values weighted by
them, rescaled whenever the largest grows. The backward pass recomputes each block's weights from
the logarithm of the sum. Blocks that the mask rules out are never computed.

Reference: Rabe and Staats 2021 (arXiv:2112.05682); Dao et al. 2022, sections 3.1 and B.4
(arXiv:2205.14135).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr
from jax.typing import DTypeLike

from flaxformer_lite.nn.attentions import arguments
from flaxformer_lite.nn.functions import kernels, masks
from flaxformer_lite.nn.functions.device_ops import ATTENTION, name_arrays, ops_of
from flaxformer_lite.nn.functions.linear_call import forbid_reverse_mode, linear_call
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.types import Array, Tree

TWICE = (
    "attention 'blockwise': has no reverse mode over another derivative (jax.grad of jax.grad or of"
    ' jax.jvp); take attention="dense" (implementation="dense" of a direct call), or jax.jvp of'
    " jax.grad."
)


def attend(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    args: arguments.Arguments,
    /,
    *,
    q_block: int = 256,
    k_block: int = 256,
) -> jax.Array:
    """Computes `dense.attend` without ever holding T x S logits; see there for the other arguments.

    Mask and bias are evaluated one block at a time, so a relative bias is never built whole either.
    Values and gradients, including the bias's, agree with the dense form up to rounding; dropout
    draws different random numbers.

    Args:
      args: if the bias is a function that closes over arrays, it is differentiated with respect to
        them.
      q_block, k_block: rows and columns of a block; lengths need not be multiples.

    Returns:
      Array [B, T, N, H] in the dtype of the values. It has gradients by reverse mode, tangents by
      forward mode, and Hessian-vector products by forward over reverse. Reverse mode twice, or over
      forward mode, needs attention="dense".

    Raises:
      ValueError: shapes that do not fit each other, or a block size below one.
    """
    if q_block < 1 or k_block < 1:
        raise ValueError(
            f"q_block={q_block}, k_block={k_block}: rows and columns of a block must be at least 1."
        )
    resolved = args.resolve(q_BTNH, k_BSKH, v_BSKH)
    bias = args.bias
    T = q_BTNH.shape[1]
    S = k_BSKH.shape[1]
    q_block = min(q_block, T)
    k_block = min(k_block, S)
    q_extra = -T % q_block
    k_extra = -S % k_block
    plan = BlockPlan(
        resolved.scale,
        args.softcap,
        args.dropout_rate if args.drops else 0.0,
        q_block,
        k_block,
        args.sharding,
    )
    # Rows are repeated, as zeros would stretch the last block's range of columns back to the first.
    q_index_T = jnp.pad(resolved.q_index_T, (0, q_extra), mode="edge")
    if callable(bias):
        # What a closure holds would be no argument of the custom derivative, and get no gradient.
        bias = as_pytree(bias, q_BTNH[:, :q_block], k_block)
    elif bias is not None:
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, q_extra), (0, k_extra)))
    sinks_N = None
    if args.sinks_N is not None:
        sinks_N = args.sinks_N.astype(jnp.float32)
    mask = resolved.mask
    if mask is None and k_extra:
        mask = masks.full()  # hides the columns behind the last one
    given = Given(
        mask=mask,
        q_index_T=q_index_T,
        k_index_S=jnp.pad(resolved.k_index_S, (0, k_extra), constant_values=-1),
        dropout_key=args.dropout_key if args.drops else None,
        spans=_spans(resolved, q_index_T, T, S, q_block, k_block),
    )
    q = _pad_rows(q_BTNH, q_extra)
    k = _pad_rows(k_BSKH, k_extra)
    v = _pad_rows(v_BSKH, k_extra)
    return _attend(plan, q, k, v, bias, sinks_N, given)[:, :T]


def _pad_rows(x_BTNH: jax.Array, extra: int) -> jax.Array:
    return jnp.pad(x_BTNH, ((0, 0), (0, extra), (0, 0), (0, 0)))


class BlockPlan(NamedTuple):
    """The constants of a call."""

    scale: float
    softcap: float
    dropout_rate: float
    q_block: int
    k_block: int
    sharding: ActivationSharding  # of the call; a CPU by itself draws dropout's numbers faster


BiasTree = arguments.Bias | jax.Array | None
# Tangents or gradients: of queries, keys, values, the floats of the bias, and the sinks
Inputs = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array], jax.Array | None]
# what a block of rows adds up: the same, without the sinks and, over all blocks, the queries
_Sums = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]
_Totals = tuple[jax.Array, jax.Array, list[jax.Array]]


class Given(NamedTuple):
    """The arrays of a call that have no gradient."""

    mask: masks.Mask | None
    q_index_T: jax.Array
    k_index_S: jax.Array
    dropout_key: jax.Array | None
    # int32 [blocks, 2]: for each block of rows, the first block of columns and one past the last
    spans: jax.Array
    # int32 [blocks]: the numbers of the blocks of rows and of columns by which dropout draws, where
    # they are not 0, 1, 2 ...
    q_numbers: jax.Array | None = None
    k_numbers: jax.Array | None = None


# of a block of rows: the largest logits [B, N, T, 1], sums of exponentials [B, N, T, 1] and sums of
# values [B, T, N, H] so far
SoftmaxState = tuple[jax.Array, jax.Array, jax.Array]


# queries, keys, values, the bias, the sinks, what is given
_Primals = tuple[jax.Array, jax.Array, jax.Array, BiasTree, jax.Array | None, Given]
# the same, the output, log-sums of exponentials
Saved = tuple[
    jax.Array, jax.Array, jax.Array, BiasTree, jax.Array | None, Given, jax.Array, jax.Array
]


def _spans(
    resolved: arguments.Resolved, q_index_T: jax.Array, T: int, S: int, q_block: int, k_block: int
) -> jax.Array:
    if resolved.mask is None or not resolved.columns_ordered:
        bounds: list[tuple[masks.Slot, masks.Slot]] = [(0, S)] * (q_index_T.size // q_block)
    elif resolved.rows_ordered:
        bounds = [
            resolved.mask.column_bounds(start, min(start + q_block, T), S)
            for start in range(0, T, q_block)
        ]
    else:
        blocks = q_index_T.reshape(-1, q_block)
        first, last = resolved.mask.column_bounds(blocks.min(axis=1), blocks.max(axis=1) + 1, S)
        first = jnp.broadcast_to(first // k_block, len(blocks))
        last = jnp.broadcast_to(-(-last // k_block), len(blocks))
        return jnp.stack([first, last], axis=1)
    spans = []
    for first, last in bounds:
        if first < last:
            spans.append((first // k_block, -(-last // k_block)))
        else:
            spans.append((0, 0))
    return jnp.asarray(spans, jnp.int32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(
    plan: BlockPlan,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    bias: BiasTree,
    sinks_N: jax.Array | None,
    given: Given,
) -> jax.Array:
    return _attend_forward(plan, q_BTNH, k_BSKH, v_BSKH, bias, sinks_N, given)[0]


@_attend.defjvp
def _attend_jvp(
    plan: BlockPlan,
    primals: _Primals,
    tangents: _Primals,
) -> tuple[jax.Array, jax.Array]:
    out_BTNH, saved = _attend_forward(plan, *primals)
    d_q, d_k, d_v, d_bias, d_sinks_N, _ = tangents
    d_out_BTNH = linear_call(
        functools.partial(_tangent_once, plan),
        functools.partial(_backward_once, plan),
        saved,
        (d_q, d_k, d_v, floats(d_bias), d_sinks_N),
        like=out_BTNH,
    )
    return out_BTNH, d_out_BTNH


def _attend_forward(
    plan: BlockPlan,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    bias: BiasTree,
    sinks_N: jax.Array | None,
    given: Given,
) -> tuple[jax.Array, Saved]:
    def rows(_: object, i: jax.Array) -> tuple[None, tuple[jax.Array, jax.Array]]:
        start = no_columns(q_BTNH, v_BSKH, plan.q_block, sinks_N)
        state = add_columns(plan, q_BTNH, k_BSKH, v_BSKH, bias, given, i, start)
        return None, finish(state, v_BSKH)

    _, (out, lse) = lax.scan(rows, None, jnp.arange(len(given.spans)))
    out_BTNH, lse = name_arrays(ATTENTION, join(out), lse)
    return out_BTNH, (q_BTNH, k_BSKH, v_BSKH, bias, sinks_N, given, out_BTNH, lse)


def no_columns(
    q_BTNH: jax.Array, v_BSKH: jax.Array, rows: int, sinks_N: jax.Array | None
) -> SoftmaxState:
    """Returns the state of a block of rows before its first column, but after the sinks."""
    B, _, N, _ = q_BTNH.shape
    # Like the queries, as the state of a loop varies over the mesh as they do (`jax.shard_map`).
    zeros = functools.partial(jnp.zeros_like, q_BTNH, jnp.float32)
    total_BNT1 = zeros(shape=(B, N, rows, 1))
    top_BNT1 = total_BNT1 + kernels.MASKED_LOGIT
    if sinks_N is not None:
        top_BNT1 = jnp.maximum(top_BNT1, sinks_N[None, :, None, None])
        # The top is the sink itself, so its exponential is exp(0).
        total_BNT1 += 1
    return top_BNT1, total_BNT1, zeros(shape=(B, rows, N, v_BSKH.shape[-1]))


def add_columns(
    plan: BlockPlan,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    bias: BiasTree,
    given: Given,
    i: jax.Array,
    state: SoftmaxState,
) -> SoftmaxState:
    """Adds the columns that block i of the rows sees to the state of its softmax."""
    q_i = _block(q_BTNH, i, plan.q_block)

    def columns(j: jax.Array, state: SoftmaxState) -> SoftmaxState:
        top_BNT1, total_BNT1, out_BTNH = state
        scores_BNTS = _scores(
            plan, q_i, _block(k_BSKH, j, plan.k_block), _part(plan, bias, i, j), i, j
        )
        visible_B1TS = _visible(plan, given, i, j)
        if visible_B1TS is not None:
            scores_BNTS = jnp.where(visible_B1TS, scores_BNTS, kernels.MASKED_LOGIT)
        # The result does not depend on the largest, up to rounding; its derivative would be NaN
        # where XLA computes a score twice, with another last bit.
        highest_BNT1 = lax.stop_gradient(scores_BNTS).max(axis=-1, keepdims=True)
        new_top_BNT1 = jnp.maximum(top_BNT1, highest_BNT1)
        weights_BNTS = _weights(scores_BNTS, new_top_BNT1, visible_B1TS)
        shrink_BNT1 = jnp.exp(top_BNT1 - new_top_BNT1)
        dropped_BNTS = _drop(plan, given, weights_BNTS, i, j)
        more_BTNH = kernels.pool(dropped_BNTS, _block(v_BSKH, j, plan.k_block), dtype=jnp.float32)
        total_BNT1 = total_BNT1 * shrink_BNT1 + weights_BNTS.sum(axis=-1, keepdims=True)
        return new_top_BNT1, total_BNT1, out_BTNH * jnp.swapaxes(shrink_BNT1, 1, 2) + more_BTNH

    return _over_columns(given, i, columns, state)


def finish(state: SoftmaxState, v_BSKH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the output of a block of rows and the logarithm of its sum of exponentials."""
    top_BNT1, total_BNT1, out_BTNH = state
    seen_BNT1 = total_BNT1 > 0
    # A row that sees nothing has output zero, and not 0 / 0.
    total_BNT1 = jnp.where(seen_BNT1, total_BNT1, 1)
    lse_BNT1 = jnp.where(seen_BNT1, top_BNT1 + jnp.log(total_BNT1), 0)
    return (out_BTNH / jnp.swapaxes(total_BNT1, 1, 2)).astype(v_BSKH.dtype), lse_BNT1


def _tangent_once(plan: BlockPlan, saved: Saved, inputs: Inputs) -> jax.Array:
    d_out_BTNH = tangent(plan, saved, inputs).astype(saved[-2].dtype)
    return forbid_reverse_mode(d_out_BTNH, TWICE)


def _backward_once(plan: BlockPlan, saved: Saved, d_out_BTNH: jax.Array) -> Inputs:
    return jax.tree.map(
        lambda gradient: forbid_reverse_mode(gradient, TWICE), gradients(plan, saved, d_out_BTNH)
    )


def tangent(plan: BlockPlan, saved: Saved, inputs: Inputs) -> jax.Array:
    """Computes the output's tangent from its inputs' tangents; the bias has a list of floats.

    It is `w (d_scores - d_lse) v + w d_v`, with weights w and `d_lse = w d_scores`, in float32.
    """
    q_BTNH, k_BSKH, v_BSKH, bias, sinks_N, given, out_BTNH, lse = saved
    d_q, d_k, d_v, d_floats, d_sinks_N = inputs
    d_bias = _with_floats(bias, d_floats)
    pool = functools.partial(kernels.pool, dtype=jnp.float32)

    def d_part(i: jax.Array, j: jax.Array) -> BiasTree | np.ndarray:
        if callable(bias) or bias is None or d_floats:
            return _part(plan, d_bias, i, j)
        return np.zeros((*bias.shape[:2], plan.q_block, plan.k_block), jax.dtypes.float0)

    def rows(_: object, i: jax.Array) -> tuple[None, jax.Array]:
        q_i = _block(q_BTNH, i, plan.q_block)
        d_q_i = _block(d_q, i, plan.q_block)
        out_i = _block(out_BTNH, i, plan.q_block).astype(jnp.float32)

        def columns(j: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            d_lse_BNT1, d_out_BTNH = state
            scores_BNTS, d_scores_BNTS = jax.jvp(
                functools.partial(_scores, plan, i=i, j=j),
                (q_i, _block(k_BSKH, j, plan.k_block), _part(plan, bias, i, j)),
                (d_q_i, _block(d_k, j, plan.k_block), d_part(i, j)),
            )
            weights_BNTS = _weights(scores_BNTS, lse[i], _visible(plan, given, i, j))
            d_weights_BNTS = weights_BNTS * d_scores_BNTS
            d_lse_BNT1 += d_weights_BNTS.sum(axis=-1, keepdims=True)
            v_j = _block(v_BSKH, j, plan.k_block)
            d_v_j = _block(d_v, j, plan.k_block)
            d_out_BTNH += pool(_drop(plan, given, d_weights_BNTS, i, j), v_j)
            d_out_BTNH += pool(_drop(plan, given, weights_BNTS, i, j), d_v_j)
            return d_lse_BNT1, d_out_BTNH

        d_lse_BNT1 = jnp.zeros_like(lse[i])
        if sinks_N is not None and d_sinks_N is not None:
            d_lse_BNT1 += _of_sinks(sinks_N, lse[i]) * d_sinks_N[None, :, None, None]
        start = (d_lse_BNT1, jnp.zeros_like(out_i))
        d_lse_BNT1, d_out_i = _over_columns(given, i, columns, start)
        return None, d_out_i - jnp.swapaxes(d_lse_BNT1, 1, 2) * out_i

    _, d_out = lax.scan(rows, None, jnp.arange(len(given.spans)))
    return join(d_out)


def gradients(
    plan: BlockPlan, saved: Saved, d_out_BTNH: jax.Array, dtype: DTypeLike | None = None
) -> Inputs:
    """Computes the gradients of queries, keys, values, the bias's floats and sinks, by blocks.

    Args:
      dtype: dtype of the gradients; None keeps each array's own.
    """
    q_BTNH, k_BSKH, v_BSKH, bias, sinks_N, given, out_BTNH, lse = saved

    def rows(totals: _Totals, i: jax.Array) -> tuple[_Totals, tuple[jax.Array, jax.Array | None]]:
        q_i = _block(q_BTNH, i, plan.q_block)
        d_out_i = _block(d_out_BTNH, i, plan.q_block).astype(jnp.float32)
        out_i = _block(out_BTNH, i, plan.q_block).astype(jnp.float32)
        # It equals the sum of weights times their gradients over all columns, so that no pass over
        # the columns is needed to know it (Dao et al. 2022, B.4).
        delta_BNT1 = jnp.swapaxes((d_out_i * out_i).sum(axis=-1, keepdims=True), 1, 2)

        def columns(j: jax.Array, state: _Sums) -> _Sums:
            d_q_i, d_k, d_v, d_bias = state
            k_j = _block(k_BSKH, j, plan.k_block)
            v_j = _block(v_BSKH, j, plan.k_block)
            score = functools.partial(_scores, plan, i=i, j=j)
            scores_BNTS, pull_scores = jax.vjp(score, q_i, k_j, _part(plan, bias, i, j))
            weights_BNTS = _weights(scores_BNTS, lse[i], _visible(plan, given, i, j))
            pool = functools.partial(kernels.pool, dtype=jnp.float32)
            _, pull_pool = jax.vjp(pool, _drop(plan, given, weights_BNTS, i, j), v_j)
            d_dropped_BNTS, d_v_j = pull_pool(d_out_i)
            d_weights_BNTS = _drop(plan, given, d_dropped_BNTS, i, j)
            d_q_ij, d_k_j, d_part = pull_scores(weights_BNTS * (d_weights_BNTS - delta_BNT1))
            here = (0, j * plan.k_block, 0, 0)
            if callable(bias):
                parts = floats(d_part)
                d_bias = [t + x.astype(t.dtype) for t, x in zip(d_bias, parts, strict=True)]
            elif d_bias:  # none for a bias of integers
                d_bias = [_add_at(d_bias[0], (0, 0, i * plan.q_block, j * plan.k_block), d_part)]
            return (
                d_q_i + d_q_ij.astype(jnp.float32),
                _add_at(d_k, here, d_k_j),
                _add_at(d_v, here, d_v_j),
                d_bias,
            )

        start = (jnp.zeros_like(q_i, jnp.float32), *totals)
        d_q_i, d_k, d_v, d_bias = _over_columns(given, i, columns, start)
        d_sinks_N = None
        if sinks_N is not None:
            d_sinks_N = -(_of_sinks(sinks_N, lse[i]) * delta_BNT1).sum(axis=(0, 2, 3))
        return (d_k, d_v, d_bias), (d_q_i.astype(dtype or q_i.dtype), d_sinks_N)

    zero = functools.partial(jnp.zeros_like, d_out_BTNH, jnp.float32)
    zeros = (
        zero(shape=k_BSKH.shape),
        zero(shape=v_BSKH.shape),
        [zero(shape=x.shape) for x in floats(bias)],
    )
    (d_k, d_v, d_bias), (d_q, d_sinks_XN) = lax.scan(rows, zeros, jnp.arange(len(given.spans)))
    d_q = join(d_q)
    d_k = d_k.astype(dtype or k_BSKH.dtype)
    d_v = d_v.astype(dtype or v_BSKH.dtype)
    d_floats = []
    for x, d in zip(floats(bias), d_bias, strict=True):
        d_floats.append(d.astype(dtype or x.dtype))
    d_sinks_N = None
    if d_sinks_XN is not None:
        d_sinks_N = d_sinks_XN.sum(axis=0)
    return d_q, d_k, d_v, d_floats, d_sinks_N


def _of_sinks(sinks_N: jax.Array, lse_BNT1: jax.Array) -> jax.Array:
    """Returns the weights of the sinks."""
    return jnp.exp(sinks_N[None, :, None, None] - lse_BNT1)


def _over_columns(given: Given, i: jax.Array, columns: Callable, state: Tree) -> Tree:
    first, last = given.spans[i]
    return lax.fori_loop(first, last, columns, state)


def _scores(
    plan: BlockPlan, q_i: jax.Array, k_j: jax.Array, bias: BiasTree, i: jax.Array, j: jax.Array
) -> jax.Array:
    if callable(bias):
        rows_T = i * plan.q_block + jnp.arange(plan.q_block, dtype=jnp.int32)
        bias = bias(q_i, rows_T, j * plan.k_block + jnp.arange(plan.k_block, dtype=jnp.int32))
    return arguments.scores(q_i, k_j, bias, plan.scale, plan.softcap)


def _weights(
    scores_BNTS: jax.Array, level_BNT1: jax.Array, visible_B1TS: jax.Array | None
) -> jax.Array:
    # Masked scores are finite, so a row that sees nothing has exponentials of one here: the mask is
    # applied to the weights again.
    weights_BNTS = jnp.exp(scores_BNTS - level_BNT1)
    if visible_B1TS is None:
        return weights_BNTS
    return jnp.where(visible_B1TS, weights_BNTS, 0)


def _visible(plan: BlockPlan, given: Given, i: jax.Array, j: jax.Array) -> jax.Array | None:
    if given.mask is None:
        return None
    q_index_T = _block(given.q_index_T, i, plan.q_block, axis=0)
    return given.mask(q_index_T, _block(given.k_index_S, j, plan.k_block, axis=0))[:, None]


def _drop(
    plan: BlockPlan, given: Given, x_BNTS: jax.Array, i: jax.Array, j: jax.Array
) -> jax.Array:
    if given.dropout_key is None:
        return x_BNTS
    row = i if given.q_numbers is None else given.q_numbers[i]
    column = j if given.k_numbers is None else given.k_numbers[j]
    # By the numbers of the blocks, so that the backward pass, and the devices of a ring, draw the
    # same.
    key = jax.random.fold_in(jax.random.fold_in(given.dropout_key, row), column)
    keep_BNTS = ops_of(plan.sharding).draw(key, 1 - plan.dropout_rate, x_BNTS.shape)
    return jnp.where(keep_BNTS, x_BNTS / (1 - plan.dropout_rate), 0)


def _block(x: jax.Array, i: jax.Array, size: int, axis: int = 1) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, i * size, size, axis)


def join(blocks: jax.Array) -> jax.Array:
    """Joins blocks of rows, which scan stacked along a leading axis, to [B, T, ...]."""
    blocks = jnp.moveaxis(blocks, 0, 1)
    return blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])


def _add_at(total: jax.Array, corner: tuple, part: jax.Array) -> jax.Array:
    part = lax.dynamic_slice(total, corner, part.shape) + part.astype(total.dtype)
    return lax.dynamic_update_slice(total, part, corner)


def _part(plan: BlockPlan, bias: BiasTree, i: jax.Array, j: jax.Array) -> BiasTree:
    """Returns the bias for one block: the block of an array, or the function itself."""
    if bias is None or callable(bias):
        return bias
    return _block(_block(bias, i, plan.q_block, axis=2), j, plan.k_block, axis=3)


def floats(tree: object) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _with_floats(bias: Tree, floats: list[jax.Array]) -> Tree:
    """Builds a tangent for the bias: the arrays for floats, JAX's float0 for integers."""
    remaining = iter(floats)

    def tangent(x: jax.Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return next(remaining)
        return np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(tangent, bias)


def as_pytree(bias: arguments.Bias, q_i: jax.Array, k_block: int) -> arguments.Bias:
    """Turns a bias function into a pytree with its arrays as leaves.

    The arrays of a plain function are found by tracing it.
    """
    if not jax.tree_util.all_leaves([bias]):
        return bias
    traced = jax.make_jaxpr(bias)(
        q_i, jnp.arange(q_i.shape[1], dtype=jnp.int32), jnp.arange(k_block, dtype=jnp.int32)
    )
    return jax.tree_util.Partial(functools.partial(_evaluate, traced.jaxpr), traced.consts)


def _evaluate(jaxpr: Jaxpr, consts: list[jax.Array], *arguments: jax.Array) -> jax.Array:
    return jax.core.eval_jaxpr(jaxpr, consts, *arguments)[0]
