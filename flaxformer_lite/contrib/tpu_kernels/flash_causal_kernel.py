"""The TPU kernel behind flash_causal.py.

Blocks of queries meet blocks of keys on and below the diagonal; only those pairs of blocks are
steps of the grid. Of packed documents, pairs of blocks that share none are skipped, and a mask is
computed only where a pair of blocks needs one. On the diagonal, queries are not multiplied with
parts of the keys that all come later.

The backward pass computes a block's weights once, for all three gradients: five products, where
one kernel for queries and one for keys and values take seven. The gradient of the queries of a
whole row waits in on-chip memory; with keys in ascending order a block of it is complete as soon as
its own keys are done.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from flaxformer_lite.nn.functions.kernels import MASKED
from flaxformer_lite.nn.functions.tuning import ATTENTION, FORMS, LANES, name_arrays

# Bytes of on-chip memory that a pass may use, of 64 MiB or more for each core since v5.
ON_CHIP = 56 * 2**20
# Most keys that are multiplied at once on the diagonal. Fewer leave out more queries.
DIAGONAL_PART = 256


class KernelPlan(NamedTuple):
    """The static options of the kernel.

    Attributes:
      block: queries and keys of a block; divides T.
      part: keys that are multiplied at once below the diagonal; divides `block`.
      has_ids: whether ids restrict what a query sees.
      interpret: whether to interpret the kernel, on other devices than TPUs.
    """

    block: int
    part: int
    has_ids: bool
    interpret: bool


class Form(NamedTuple):
    """A form of a step, for pairs of blocks that are masked alike.

    Attributes:
      is_diagonal: whether queries meet the keys of the same positions, and see the earlier ones.
      by_ids: whether only keys of equal ids are seen.
    """

    is_diagonal: bool
    by_ids: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    plan: KernelPlan,
    q_BNTH: jax.Array,
    k_BKTH: jax.Array,
    v_BKTH: jax.Array,
    q_ids_BT: jax.Array,
    k_ids_BT: jax.Array,
) -> jax.Array:
    """Computes causal attention with logits `q . k` among positions of equal ids, [B, N, T, H].

    The output of a query that no key is equal to is finite and has no meaning.

    Args:
      plan: static.
      q_BNTH: scaled queries.
      k_BKTH, v_BKTH: keys and values; query head n reads key head n // (N / K).
      q_ids_BT, k_ids_BT: int32.
    """
    return _forward(plan, q_BNTH, k_BKTH, v_BKTH, q_ids_BT, k_ids_BT)[0]


def _forward(
    plan: KernelPlan,
    q_BNTH: jax.Array,
    k_BKTH: jax.Array,
    v_BKTH: jax.Array,
    q_ids_BT: jax.Array,
    k_ids_BT: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    B, N, T, H = q_BNTH.shape
    group = N // k_BKTH.shape[1]
    size = plan.block
    count = T // size
    # In the order of the steps: each block of queries with its keys.
    q_blocks, k_blocks = np.tril_indices(count)

    queries = pl.BlockSpec((1, 1, size, H), lambda b, n, s, i, j, *_: (b, n, i[s], 0))
    keys = pl.BlockSpec(
        (1, 1, size, H), lambda b, n, s, i, j, *_: (b, lax.div(n, jnp.int32(group)), j[s], 0)
    )
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=6,
        grid=(B, N, len(q_blocks)),
        in_specs=[
            queries,
            keys,
            keys,
            pl.BlockSpec((1, size, 1), lambda b, n, s, i, j, *_: (b, i[s], 0)),
            pl.BlockSpec((1, 1, size), lambda b, n, s, i, j, *_: (b, 0, j[s])),
        ],
        out_specs=[
            queries,
            pl.BlockSpec((1, 1, 1, size), lambda b, n, s, i, j, *_: (b, n, 0, i[s])),
        ],
        scratch_shapes=[
            pltpu.VMEM((size, H), jnp.float32),
            pltpu.VMEM((size, LANES), jnp.float32),
            pltpu.VMEM((size, LANES), jnp.float32),
        ],
    )
    out_BNTH, sums_BN1T = pl.pallas_call(
        functools.partial(_forward_kernel, plan, count),
        grid_spec=spec,
        out_shape=[
            jax.ShapeDtypeStruct(q_BNTH.shape, v_BKTH.dtype),
            jax.ShapeDtypeStruct((B, N, 1, T), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=ON_CHIP,
        ),
        interpret=plan.interpret,
        name="flash_causal_fwd",
        metadata=_metadata(plan, count),
    )(
        jnp.asarray(q_blocks, jnp.int32),
        jnp.asarray(k_blocks, jnp.int32),
        *_bounds(plan, q_ids_BT),
        *_bounds(plan, k_ids_BT),
        q_BNTH,
        k_BKTH,
        v_BKTH,
        q_ids_BT[:, :, None],
        k_ids_BT[:, None],
    )
    out_BNTH, sums_BN1T = name_arrays(ATTENTION, out_BNTH, sums_BN1T)
    return out_BNTH, (q_BNTH, k_BKTH, v_BKTH, q_ids_BT, k_ids_BT, out_BNTH, sums_BN1T)


def _backward(
    plan: KernelPlan, residuals: tuple[jax.Array, ...], d_out_BNTH: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, None]:
    q_BNTH, k_BKTH, v_BKTH, q_ids_BT, k_ids_BT, out_BNTH, sums_BN1T = residuals
    B, N, T, H = q_BNTH.shape
    K = k_BKTH.shape[1]
    group = N // K
    size = plan.block
    count = T // size
    # In the order of the steps: each block of keys, for each query head with the blocks of queries.
    steps = []
    for j in range(count):
        for g in range(group):
            for i in range(j, count):
                steps.append((i, j, g))
    q_blocks, k_blocks, heads = np.array(steps, np.int32).T
    # The sum of a row's weights times their gradients, from the output and so without the weights:
    # D in Dao et al. 2022 (arXiv:2205.14135), appendix B.2.
    products = out_BNTH.astype(jnp.float32) * d_out_BNTH.astype(jnp.float32)
    d_sums_BN1T = products.sum(axis=-1)[:, :, None]

    # n is a head of the keys, g one of the query heads that read it.
    queries = pl.BlockSpec(
        (1, 1, size, H), lambda b, n, s, i, j, g, *_: (b, n * group + g[s], i[s], 0)
    )
    keys = pl.BlockSpec((1, 1, size, H), lambda b, n, s, i, j, *_: (b, n, j[s], 0))
    sums = pl.BlockSpec(
        (1, 1, 1, size), lambda b, n, s, i, j, g, *_: (b, n * group + g[s], 0, i[s])
    )
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=7,
        grid=(B, K, len(steps)),
        in_specs=[
            queries,
            keys,
            keys,
            pl.BlockSpec((1, 1, size), lambda b, n, s, i, j, g, *_: (b, 0, i[s])),
            pl.BlockSpec((1, size, 1), lambda b, n, s, i, j, g, *_: (b, j[s], 0)),
            queries,
            sums,
            sums,
        ],
        out_specs=[
            pl.BlockSpec(
                (1, 1, size, H), lambda b, n, s, i, j, g, *_: (b, n * group + g[s], j[s], 0)
            ),
            keys,
            keys,
        ],
        scratch_shapes=[
            pltpu.VMEM((group * count, size, H), jnp.float32),
            pltpu.VMEM((size, H), jnp.float32),
            pltpu.VMEM((size, H), jnp.float32),
        ],
    )
    d_q, d_k, d_v = pl.pallas_call(
        functools.partial(_backward_kernel, plan, count, group),
        grid_spec=spec,
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q_BNTH, k_BKTH, v_BKTH)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=ON_CHIP,
        ),
        interpret=plan.interpret,
        name="flash_causal_bwd",
        metadata=_metadata(plan, count),
    )(
        q_blocks,
        k_blocks,
        heads,
        *_bounds(plan, q_ids_BT),
        *_bounds(plan, k_ids_BT),
        q_BNTH,
        k_BKTH,
        v_BKTH,
        q_ids_BT[:, None],
        k_ids_BT[:, :, None],
        d_out_BNTH.astype(v_BKTH.dtype),
        sums_BN1T,
        d_sums_BN1T,
    )
    return d_q, d_k, d_v, None, None


attend.defvjp(_forward, _backward)


def _forward_kernel(
    plan: KernelPlan,
    count: int,
    i_ref: jax.Ref,
    j_ref: jax.Ref,
    q_least_ref: jax.Ref,
    q_most_ref: jax.Ref,
    k_least_ref: jax.Ref,
    k_most_ref: jax.Ref,
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    q_ids_ref: jax.Ref,
    k_ids_ref: jax.Ref,
    out_ref: jax.Ref,
    sums_ref: jax.Ref,
    total_ref: jax.Ref,
    top_ref: jax.Ref,
    sum_ref: jax.Ref,
) -> None:
    i = i_ref[pl.program_id(2)]
    j = j_ref[pl.program_id(2)]

    @pl.when(j == 0)
    def _() -> None:
        total_ref[...] = jnp.zeros_like(total_ref)
        # Finite: of a row that has seen nothing yet, the difference of two infinities would be NaN.
        top_ref[...] = jnp.full_like(top_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def step(form: Form) -> None:
        for part, rows in _parts(plan, form):
            v_PH = v_ref[0, 0, part]
            scores_QP = _inner(q_ref[0, 0, rows], k_ref[0, 0, part])
            if form.is_diagonal:
                scores_QP = jnp.where(_is_causal(scores_QP.shape, 1), scores_QP, MASKED)
            if form.by_ids:
                same_QP = q_ids_ref[0, rows] == k_ids_ref[0, :, part]
                scores_QP = jnp.where(same_QP, scores_QP, MASKED)
            # The same number stands in all lanes, which spares moving it there for each use.
            before_QL = top_ref[rows]
            top_QL = jnp.maximum(before_QL, scores_QP.max(axis=-1, keepdims=True))
            weights_QP = jnp.exp(scores_QP - _widened(top_QL, scores_QP.shape[1]))
            shrink_QL = jnp.exp(before_QL - top_QL)
            sum_ref[rows] = sum_ref[rows] * shrink_QL + weights_QP.sum(axis=-1, keepdims=True)
            top_ref[rows] = top_QL
            added_QH = jnp.dot(
                weights_QP.astype(v_PH.dtype), v_PH, preferred_element_type=jnp.float32
            )
            total_ref[rows] = total_ref[rows] * _widened(shrink_QL, total_ref.shape[1]) + added_QH

    bounds = (q_least_ref, q_most_ref, k_least_ref, k_most_ref)
    _run(step, plan, count, bounds, i, j)

    @pl.when(i == j)
    def _() -> None:
        # It is less than 1 only if all blocks of keys were skipped.
        sum_QL = jnp.maximum(sum_ref[...], 1.0)
        out_QH = total_ref[...] / _widened(sum_QL, total_ref.shape[1])
        out_ref[0, 0] = out_QH.astype(out_ref.dtype)
        sums_QL = top_ref[...] + jnp.log(sum_QL)
        sums_ref[0, 0] = sums_QL.T[:1]


def _backward_kernel(
    plan: KernelPlan,
    count: int,
    group: int,
    i_ref: jax.Ref,
    j_ref: jax.Ref,
    g_ref: jax.Ref,
    q_least_ref: jax.Ref,
    q_most_ref: jax.Ref,
    k_least_ref: jax.Ref,
    k_most_ref: jax.Ref,
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    q_ids_ref: jax.Ref,
    k_ids_ref: jax.Ref,
    d_out_ref: jax.Ref,
    sums_ref: jax.Ref,
    d_sums_ref: jax.Ref,
    d_q_ref: jax.Ref,
    d_k_ref: jax.Ref,
    d_v_ref: jax.Ref,
    d_q_sum_ref: jax.Ref,
    d_k_sum_ref: jax.Ref,
    d_v_sum_ref: jax.Ref,
) -> None:
    s = pl.program_id(2)
    i = i_ref[s]
    j = j_ref[s]
    g = g_ref[s]
    at = g * count + i

    @pl.when((g == 0) & (i == j))
    def _() -> None:
        d_k_sum_ref[...] = jnp.zeros_like(d_k_sum_ref)
        d_v_sum_ref[...] = jnp.zeros_like(d_v_sum_ref)

    @pl.when(j == 0)
    def _() -> None:
        d_q_sum_ref[at] = jnp.zeros(d_q_sum_ref.shape[1:], jnp.float32)

    def step(form: Form) -> None:
        for part, rows in _parts(plan, form):
            q_QH = q_ref[0, 0, rows]
            d_out_QH = d_out_ref[0, 0, rows]
            k_PH = k_ref[0, 0, part]
            # Keys are the rows here, so that the sums of queries, which lie along the lanes,
            # broadcast.
            scores_PQ = _inner(k_PH, q_QH)
            if form.is_diagonal:
                scores_PQ = jnp.where(_is_causal(scores_PQ.shape, 0), scores_PQ, MASKED)
            if form.by_ids:
                same_PQ = k_ids_ref[0, part] == q_ids_ref[0, :, rows]
                scores_PQ = jnp.where(same_PQ, scores_PQ, MASKED)
            weights_PQ = jnp.exp(scores_PQ - sums_ref[0, 0, :, rows])
            d_v_sum_ref[part] += _outer(weights_PQ.astype(d_out_QH.dtype), d_out_QH)
            d_weights_PQ = _inner(v_ref[0, 0, part], d_out_QH)
            d_scores_PQ = weights_PQ * (d_weights_PQ - d_sums_ref[0, 0, :, rows])
            d_scores_PQ = d_scores_PQ.astype(q_QH.dtype)
            d_k_sum_ref[part] += _outer(d_scores_PQ, q_QH)
            d_q_sum_ref[at, rows] += lax.dot_general(
                d_scores_PQ, k_PH, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )

    bounds = (q_least_ref, q_most_ref, k_least_ref, k_most_ref)
    _run(step, plan, count, bounds, i, j)

    @pl.when(i == count - 1)
    def _() -> None:
        d_q_ref[0, 0] = d_q_sum_ref[g * count + j].astype(d_q_ref.dtype)

    @pl.when((i == count - 1) & (g == group - 1))
    def _() -> None:
        d_k_ref[0, 0] = d_k_sum_ref[...].astype(d_k_ref.dtype)
        d_v_ref[0, 0] = d_v_sum_ref[...].astype(d_v_ref.dtype)


def _run(
    step: Callable[[Form], None],
    plan: KernelPlan,
    count: int,
    bounds: tuple[jax.Ref, ...],
    i: jax.Array,
    j: jax.Array,
) -> None:
    """Runs a step in the form that a pair of blocks needs, or not at all.

    Args:
      step: computes a pair of blocks in a form.
      plan: static.
      count: number of blocks of a row.
      bounds: the least and the greatest id of each block of queries, and of keys.
      i, j: the blocks of queries and of keys.
    """

    def run_where(condition: jax.Array, form: Form) -> None:
        pl.when(condition)(functools.partial(step, form))

    if not plan.has_ids:
        run_where(i == j, Form(is_diagonal=True, by_ids=False))
        run_where(i != j, Form(is_diagonal=False, by_ids=False))
        return
    q_least, q_most, k_least, k_most = bounds
    q_at = pl.program_id(0) * count + i
    k_at = pl.program_id(0) * count + j
    has_pairs = (q_least[q_at] <= k_most[k_at]) & (k_least[k_at] <= q_most[q_at])
    least = jnp.minimum(q_least[q_at], k_least[k_at])
    most = jnp.maximum(q_most[q_at], k_most[k_at])
    run_where(has_pairs & (i == j), Form(is_diagonal=True, by_ids=True))
    run_where(has_pairs & (i != j) & (least != most), Form(is_diagonal=False, by_ids=True))
    run_where(has_pairs & (i != j) & (least == most), Form(is_diagonal=False, by_ids=False))


def _metadata(plan: KernelPlan, count: int) -> dict[str, str]:
    """Returns how many pairs of blocks of a row take each form, in the order of `_run`.

    It is for contrib/plan, and counts a row of one document.
    """
    below = count * (count - 1) // 2
    steps = [count, 0, below] if plan.has_ids else [count, below]
    return {FORMS: json.dumps(steps)}


def _parts(plan: KernelPlan, form: Form) -> Iterator[tuple[slice, slice]]:
    """Yields parts of a block's keys, each with the queries that may see it."""
    if not form.is_diagonal:
        for first in range(0, plan.block, plan.part):
            yield slice(first, first + plan.part), slice(0, plan.block)
        return
    part = math.gcd(plan.block, DIAGONAL_PART)
    for first in range(0, plan.block, part):
        yield slice(first, first + part), slice(first, plan.block)


def _is_causal(shape: tuple[int, ...], keys_axis: int) -> jax.Array:
    """Returns which queries see which keys, if both begin at the same position.

    Args:
      shape: numbers of queries and keys, or of keys and queries.
      keys_axis: which of them are the keys.
    """
    queries = lax.broadcasted_iota(jnp.int32, shape, 1 - keys_axis)
    keys = lax.broadcasted_iota(jnp.int32, shape, keys_axis)
    return queries >= keys


def _widened(x_QL: jax.Array, width: int) -> jax.Array:
    """Repeats a number that stands in all lanes, [Q, width]."""
    return jnp.tile(x_QL, (1, -(-width // LANES)))[:, :width]


def _bounds(plan: KernelPlan, ids_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the least and the greatest id of each block, [B * blocks].

    The memory for scalars pads each row of a larger array.
    """
    blocks = ids_BT.reshape(-1, plan.block)
    return blocks.min(axis=-1), blocks.max(axis=-1)


def _inner(a_QH: jax.Array, b_PH: jax.Array) -> jax.Array:
    return lax.dot_general(a_QH, b_PH, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _outer(a_PQ: jax.Array, b_QH: jax.Array) -> jax.Array:
    return jnp.dot(a_PQ, b_QH, preferred_element_type=jnp.float32)
