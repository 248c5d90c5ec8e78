import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions import blockwise, dense
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets
from tests.marks import daily
from tests.nn.attentions.cases import MASKS, POSITIONS, N, T, by_keywords, encode, heads

BLOCKWISE = by_keywords(blockwise.attend)
DENSE = by_keywords(dense.attend)


@functools.partial(jax.jit, static_argnames=("attend", "q_block", "k_block", "softcap"))
def value_and_grads(q, k, v, bias, direction, mask, *, attend, **options):
    def run(q, k, v, learned):
        return attend(
            q, k, v, mask=mask, bias=bias and dataclasses.replace(bias, tables=learned), **options
        )

    out, pull = jax.vjp(run, q, k, v, bias.tables if bias else {})
    return out, pull(direction)


def compare(mask, position, kv_heads, dtype, blocks, **options):
    q, k, v, direction = heads(kv_heads, dtype)
    q, k, bias = encode(q, k, position, bidirectional=mask is None)
    # the reference takes every mask as an array, to be compiled but once
    whole = mask and masks.dense(mask.dense(T))
    ours = value_and_grads(
        q,
        k,
        v,
        bias,
        direction,
        mask,
        attend=BLOCKWISE,
        q_block=blocks[0],
        k_block=blocks[1],
        **options,
    )
    wanted = value_and_grads(q, k, v, bias, direction, whole, attend=DENSE, **options)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and float(jnp.abs(b).max()) > 0.1
        error = (
            jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max()
            / jnp.abs(b.astype(jnp.float32)).max()
        )
        assert error < (1e-5 if dtype == jnp.float32 else 2e-2)


# Each mask meets an encoding in float32, and one in bfloat16; the other pairs are of the nightly
# run.
PAIRS = [*zip(MASKS, POSITIONS, strict=True)]


ALL = [*itertools.product(MASKS, POSITIONS)]


@pytest.mark.parametrize(("mask", "position"), daily(ALL, PAIRS))
def test_equals_dense_in_value_and_gradient(mask, position):
    """Heads are grouped in every other case, so that each two of mask, position and grouping
    meet."""
    number = [*MASKS].index(mask) + POSITIONS.index(position)
    compare(MASKS[mask], position, (N, 2)[number % 2], jnp.float32, (4, 4))


@pytest.mark.parametrize(("mask", "position"), daily(ALL, PAIRS[-2:-1]))
def test_equals_dense_in_bfloat16(mask, position):
    number = [*MASKS].index(mask) + POSITIONS.index(position) + 1
    compare(MASKS[mask], position, (N, 2)[number % 2], jnp.bfloat16, (4, 4))


@pytest.mark.parametrize(
    "blocks",
    [
        (100, 100),
        *(pytest.param(size, marks=pytest.mark.nightly) for size in ((1, 1), (3, 5), (11, 4))),
    ],
)
def test_any_block_size(blocks):
    compare(MASKS["packed"], "t5_buckets", 2, jnp.float32, blocks, softcap=2.0)


@pytest.mark.parametrize(
    "shape", [(2, N, T, T), pytest.param((1, 1, T, T), marks=pytest.mark.nightly)]
)
def test_gradient_of_a_bias_array(shape):
    q, k, v, direction = heads(2)
    bias = jax.random.normal(jax.random.key(5), shape)

    def grad(attend, **options):
        def loss(bias):
            return (attend(q, k, v, mask=masks.causal(), bias=bias, **options) * direction).sum()

        return jax.jit(jax.grad(loss))(bias)

    np.testing.assert_allclose(grad(BLOCKWISE, q_block=4, k_block=3), grad(DENSE), atol=1e-5)


@pytest.mark.nightly
def test_gradient_beside_a_bias_of_integers():
    q, k, v, direction = heads(2)
    bias = jnp.arange(T * T).reshape(1, 1, T, T) % 3

    def grad(attend, **options):
        return jax.jit(
            jax.grad(lambda q: (attend(q, k, v, bias=bias, **options) * direction).sum())
        )(q)

    np.testing.assert_allclose(grad(BLOCKWISE, q_block=4, k_block=3), grad(DENSE), atol=1e-5)


def test_gradient_of_what_a_bias_function_closes_over():
    q, k, v, direction = heads(2)

    def grad(attend, **options):
        def loss(slopes):
            def bias(q, rows, columns):
                distance = jnp.abs(rows[:, None] - columns[None, :]).astype(jnp.float32)
                return -jnp.exp(slopes)[None, :, None, None] * distance[None, None] + 0.1 * q.mean()

            # Inside scan and remat: what the function closes over must not leak from one trace to
            # another.
            body = jax.checkpoint(
                lambda total, _: (total + attend(q, k, v, bias=bias, **options), None)
            )
            return (jax.lax.scan(body, jnp.zeros_like(q), None, length=2)[0] * direction).sum()

        return jax.jit(jax.grad(loss))(jnp.linspace(-2.0, 0.0, N))

    np.testing.assert_allclose(grad(BLOCKWISE, q_block=4, k_block=3), grad(DENSE), rtol=1e-4)


@pytest.mark.parametrize(
    ("mask", "rows"), [(masks.causal(), slice(0, 4)), (masks.window(2), slice(8, 12))]
)
def test_blocks_out_of_reach_are_never_computed(mask, rows):
    """A value that is not a number spoils every row whose block meets it, for zero times NaN is
    NaN."""
    q, k, v, _ = heads(2, length=16)
    far = jnp.ones(16, bool).at[rows].set(False) & (jnp.arange(16) // 4 != rows.start // 4 - 1)
    v = jnp.where(far[None, :, None, None], jnp.nan, v)
    out = BLOCKWISE(q, k, v, mask=mask, q_block=4, k_block=4)
    assert jnp.isfinite(out[:, rows]).all() and jnp.isnan(out).any()
    assert jnp.isnan(DENSE(q, k, v, mask=mask)[:, rows]).all()


@pytest.mark.parametrize("backward", [False, True])
def test_no_array_of_length_times_length_exists(backward):
    length = 1024
    shape = (1, 1024, 2, 8)

    def compiled(attend):
        def loss(q, k, v, table):
            positions = jnp.arange(length, dtype=jnp.int32)[None]
            bias = T5Buckets().attention_bias(
                {"relative": table}, positions, positions, bidirectional=False
            )
            return attend(q, k, v, mask=masks.causal(), bias=bias).sum()

        run = jax.grad(loss, argnums=(0, 1, 2, 3)) if backward else loss
        return jax.jit(run).lower(*[jnp.ones(shape)] * 3, jnp.ones((32, 2))).compile()

    whole = 4 * 2 * length**2
    ours = compiled(BLOCKWISE)
    plain = compiled(DENSE)
    assert "1024,1024" not in ours.as_text() and "1024,1024" in plain.as_text()
    assert ours.memory_analysis().temp_size_in_bytes < whole / 2
    assert plain.memory_analysis().temp_size_in_bytes > whole


def test_block_sizes_are_positive():
    q, k, v, _ = heads(2)
    with pytest.raises(ValueError, match=r"q_block=0, k_block=4.*at least 1"):
        BLOCKWISE(q, k, v, q_block=0, k_block=4)


@pytest.mark.parametrize(
    "run",
    [jax.jit, lambda function, **_: function],
    ids=["jit", "eager"],
)
@pytest.mark.nightly
def test_forward_mode_and_hessian_vector_products(run):
    q, k, v, direction = (jnp.asarray(x, jnp.float32) for x in heads(N, jnp.float32))
    bias = jax.random.normal(jax.random.key(0), (1, N, T, T))
    given = (q, k, v, bias)
    along = (direction, -direction, 0.5 * direction, bias**2)

    def derivatives(attend, *given):
        def loss(*given):
            return jnp.sum(attend(*given[:3], mask=masks.causal(), bias=given[3]) ** 2)

        def layers(q):
            return jax.lax.scan(
                lambda q, _: (q + jnp.tanh(loss(q, *given[1:]) / 1e3), None), q, None, 2
            )[0].sum()

        slope = jax.jvp(jax.checkpoint(jax.jit(loss)), given, along)[1]
        line = jax.linearize(loss, *given)[1](*along)
        scanned = jax.jvp(layers, (q,), (direction,))[1]
        product = jax.jvp(jax.grad(loss, (0, 3)), given, along)[1]
        rows = jax.vmap(jax.grad(loss), (0, None, None, None))(jnp.stack([q, 2 * q]), *given[1:])
        twice = jax.jvp(lambda *x: jax.jvp(loss, x, along)[1], given, along)[1]
        return slope, line, scanned, product, rows, twice

    blocks = functools.partial(BLOCKWISE, q_block=8, k_block=8)
    ours, due = (run(derivatives, static_argnums=0)(attend, *given) for attend in (blocks, DENSE))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(due), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4 * float(jnp.abs(y).max()))


@pytest.mark.nightly
def test_a_tuned_cpu_drops_the_same_weights():
    q, k, v, _ = heads(2)

    def dropped(tuned):
        placed = ActivationSharding(tuned=tuned)
        drop = functools.partial(BLOCKWISE, dropout_rate=0.5, q_block=4, k_block=4, sharding=placed)
        return jax.jit(drop)(q, k, v, dropout_key=jax.random.key(1))

    np.testing.assert_array_equal(dropped(True), dropped(False))
