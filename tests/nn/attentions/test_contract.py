"""The contract of every file in attentions/."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from tests.marks import daily
from tests.nn.attentions.cases import MASKS, SEGMENTS, B, H, N, T, by_keywords, heads

SMALL_BLOCKS = {"blockwise": {"q_block": 4, "k_block": 3}}


# A kernel that refuses some calls has a contract of its own: test_fused.py.
GENERAL = [
    name
    for name in registry.available("attentions")
    if not hasattr(registry.resolve("attentions", name), "unsupported_reason")
]


@pytest.fixture(params=GENERAL)
def attend(request):
    function = registry.resolve("attentions", request.param).attend
    whole = functools.partial(by_keywords(function), **SMALL_BLOCKS.get(request.param, {}))
    return lambda q, k, v, **options: jax.jit(lambda *arrays: whole(*arrays, **options))(q, k, v)


def close(a, b, dtype=jnp.float32):
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(a, np.float32), np.asarray(b, np.float32), atol=tolerance, rtol=tolerance
    )


def oracle(q, k, v, visible, bias=0.0, scale=H**-0.5, softcap=0.0):
    """Attention in numpy, float64, keys and values repeated for grouped heads."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) * scale
    logits = softcap * np.tanh(logits / softcap) if softcap else logits
    weights = np.exp(logits + bias) * np.asarray(visible)[:, None]
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", weights / np.where(total > 0, total, 1), v)


@pytest.mark.parametrize(
    ("kv_heads", "dtype"), [(4, jnp.float32), (2, jnp.bfloat16), (1, jnp.float32)]
)
def test_equals_the_oracle_under_scale_softcap_bias_and_mask(attend, kv_heads, dtype):
    q, k, v, _ = heads(kv_heads, dtype)
    bias = jax.random.normal(jax.random.key(9), (1, N, T, T))
    out = attend(q, k, v, mask=MASKS["packed"], bias=bias, scale=0.7, softcap=2.0)
    assert out.shape == q.shape and out.dtype == dtype
    close(out, oracle(q, k, v, MASKS["packed"].dense(T), bias, 0.7, 2.0), dtype)


def test_cross_attention_and_a_value_width_of_its_own(attend):
    q, k, v, _ = heads(2)
    q = q[:, :5]
    v = v[..., :3]
    mask = masks.segments(SEGMENTS[:, :5], SEGMENTS)
    close(attend(q, k, v, mask=mask), oracle(q, k, v, mask.dense(5, T)))


@pytest.mark.parametrize(
    "name", daily([name for name in MASKS if name != "none"], ("window", "packed"))
)
def test_what_is_masked_changes_nothing_not_a_bit(attend, name):
    q, k, v, direction = heads(2)
    column = 6
    seen = MASKS[name].dense(T)[..., 6]
    seen = jnp.broadcast_to(seen, (B, T))
    assert 0 < int(seen.sum()) < B * T

    @jax.jit
    def run(x):
        out, pull = jax.vjp(
            lambda q, k, v: attend(q, k, v, mask=MASKS[name]),
            q,
            k.at[:, column].add(x),
            v.at[:, column].add(x),
        )
        return out, pull(jnp.where(seen[..., None, None], 0, direction))

    out, grads = run(0.0)
    changed, changed_grads = run(100.0)
    assert (
        jnp.where(seen[..., None, None], 0, out) == jnp.where(seen[..., None, None], 0, changed)
    ).all()
    assert not (out == changed).all()
    jax.tree.map(np.testing.assert_array_equal, grads, changed_grads)
    assert (grads[1][:, column] == 0).all() and (grads[2][:, column] == 0).all()


@pytest.mark.parametrize(("dtype", "softcap"), [(jnp.float32, 0.0), (jnp.bfloat16, 2.0)])
def test_a_row_that_sees_nothing_is_zero_and_sends_no_gradient(attend, dtype, softcap):
    q, k, v, direction = heads(2, dtype)
    blind = jnp.zeros((B, T), bool).at[0].set(True).at[1, 5].set(True)
    mask = masks.dense(~jnp.broadcast_to(blind[..., None], (B, T, T)))

    @jax.jit
    def run(q, k, v):
        out, pull = jax.vjp(lambda *x: attend(*x, mask=mask, softcap=softcap), q, k, v)
        return out, pull(direction)

    out, grads = (jax.tree.map(np.asarray, one) for one in run(q, k, v))
    assert (out[blind] == 0).all() and (out[~blind] != 0).all()
    assert (grads[0][blind] == 0).all() and (grads[1][0] == 0).all() and (grads[2][0] == 0).all()
    assert all(np.isfinite(g).all() for g in grads) and (grads[0][~blind] != 0).any()


def test_arrays_and_functions_are_one_and_the_same(attend):
    q, k, v, _ = heads(2)
    table = jax.random.normal(jax.random.key(5), (1, N, T, T))

    def bias(q, rows, columns):
        return jnp.take(jnp.take(table, rows, axis=2, mode="clip"), columns, axis=3, mode="clip")

    close(
        attend(q, k, v, mask=MASKS["packed"].dense(T), bias=table),
        attend(q, k, v, mask=MASKS["packed"], bias=bias),
    )


def test_a_rolling_cache(attend):
    """Columns in any order, and empty ones: masks go by the slots given, arrays and biases by where
    things lie."""
    q, k, v, _ = heads(2)
    order = jnp.asarray([4, -1, -1, 2, 3])
    bias = jax.random.normal(jax.random.key(5), (1, 1, T, T))
    whole = attend(q[:, 4:5], k[:, 2:5], v[:, 2:5], bias=bias[:, :, 4:5, 2:5])
    rolled = attend(
        q[:, 4:5],
        k[:, order],
        v[:, order],
        mask=masks.window(2),
        bias=bias[:, :, 4:5, order],
        q_index=jnp.asarray([4]),
        k_index=order,
    )
    close(whole, rolled)
    as_array = attend(
        q[:, 4:5],
        k[:, order],
        v[:, order],
        mask=jnp.ones((1, 1, 5), bool),
        bias=bias[:, :, 4:5, order],
        q_index=jnp.asarray([4]),
        k_index=order,
    )
    close(whole, as_array)
    close(
        whole,
        attend(q[:, 4:5], k[:, order], v[:, order], bias=bias[:, :, 4:5, order], k_index=order),
    )


def test_dropout_drops_weights_and_keeps_their_mean(attend):
    q, k, _, _ = heads(2)
    # the output is the weights themselves
    v = jnp.broadcast_to(jnp.eye(T)[None, :, None, :], (B, T, 2, T))
    plain = attend(q, k, v)
    run = jax.jit(lambda key: attend(q, k, v, dropout_rate=0.25, dropout_key=key))
    samples = jnp.stack([run(jax.random.key(i)) for i in range(40)])
    dropped = samples == 0
    assert float(dropped.mean()) == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(
        samples, jnp.where(dropped, 0, jnp.broadcast_to(plain / 0.75, samples.shape)), rtol=1e-5
    )
    per_weight = dropped.mean(axis=0)
    # no weight always or never: the keys differ
    assert (per_weight > 0).all() and (per_weight < 0.8).all()
    np.testing.assert_array_equal(attend(q, k, v, dropout_rate=0.25), plain)


def test_the_gradient_sees_the_same_dropout_as_the_value(attend):
    q, k, v, direction = heads(2)
    key = jax.random.key(3)
    eye = jnp.broadcast_to(jnp.eye(T)[None, :, None, :], (B, T, 2, T))
    kept = attend(q, k, eye, dropout_rate=0.5, dropout_key=key) != 0

    def reference(q, k, v):
        weights = jax.nn.softmax(
            jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, 2, axis=2)) * H**-0.5, axis=-1
        )
        weights = jnp.where(kept.swapaxes(1, 2), 2 * weights, 0)
        return jnp.einsum("bnts,bsnh->btnh", weights, jnp.repeat(v, 2, axis=2))

    @jax.jit
    def run(q, k, v):
        ours = functools.partial(attend, dropout_rate=0.5, dropout_key=key)
        pairs = [jax.vjp(function, q, k, v) for function in (ours, reference)]
        return [(out, pull(direction)) for out, pull in pairs]

    jax.tree.map(close, *run(q, k, v))


@pytest.mark.nightly
def test_works_under_vmap_scan_and_remat(attend):
    q, k, v, direction = heads(2)

    def layers(q):
        body = jax.checkpoint(lambda q, _: (attend(q, k, v, mask=MASKS["packed"]), None))
        return (jax.lax.scan(body, q, None, length=2)[0] * direction).sum()

    looped = attend(attend(q, k, v, mask=MASKS["packed"]), k, v, mask=MASKS["packed"])
    close(layers(q), (looped * direction).sum())
    assert jnp.isfinite(jax.grad(layers)(q)).all()
    stacked = jax.vmap(lambda q: attend(q, k, v, mask=masks.causal()))(jnp.stack([q, 2 * q]))
    close(stacked[1], attend(2 * q, k, v, mask=masks.causal()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: q[0]}, r"must be \[batch, length, heads, head_dim\]"),
        ({"k": lambda k: k[..., :4]}, "must agree"),
        ({"v": lambda v: v[:, :4]}, "must agree"),
        ({"q": lambda q: q[:, :, :3]}, "q has 3 heads, k and v have 2"),
        (
            {"mask": jnp.ones((3, T, T), bool)},
            r"mask has shape \(3, 11, 11\): must be \[1 or 2, 11, 11\]",
        ),
        ({"mask": jnp.ones((1, T, T))}, "True = may attend, not float32"),
        (
            {"bias": jnp.ones((1, T, T))},
            r"bias has shape \(1, 11, 11\): must be \[1 or 2, 1 or 4, 11, 11\]",
        ),
        ({"q_index": jnp.arange(3)}, r"q_index has shape \(3,\)"),
        ({"k_index": jnp.arange(3)}, r"k_index has shape \(3,\)"),
    ],
)
def test_what_is_refused(attend, change, message):
    inputs = dict(zip("qkv", heads(2), strict=False))
    options = {name: value for name, value in change.items() if name not in inputs}
    inputs.update({name: alter(inputs[name]) for name, alter in change.items() if name in inputs})
    with pytest.raises(ValueError, match=message):
        attend(*inputs.values(), **options)


def test_sinks_are_one_more_column_without_a_value(attend):
    q, k, v, direction = heads(2)
    sinks = jnp.asarray([-1.0, 0.0, 2.0, 30.0])

    def with_column(q, k, v, sinks):
        k = jnp.pad(k, ((0, 0), (0, 1), (0, 0), (0, 0)))
        v = jnp.pad(v, ((0, 0), (0, 1), (0, 0), (0, 0)))
        bias = jnp.zeros((1, N, T, T + 1)).at[..., -1].set(sinks[None, :, None])
        seen = jnp.broadcast_to(MASKS["packed"].dense(T), (B, T, T))
        mask = jnp.pad(seen, ((0, 0), (0, 0), (0, 1)), constant_values=True)
        return dense.attend(q, k, v, Arguments(mask=mask, bias=bias))

    def with_sinks(q, k, v, sinks):
        return attend(q, k, v, mask=MASKS["packed"], sinks_N=sinks)

    arrays = (q, k, v, sinks)
    tangents = jax.tree.map(jnp.ones_like, arrays)
    run = jax.jit(
        lambda arrays: [both(f, arrays, tangents, direction) for f in (with_sinks, with_column)]
    )
    jax.tree.map(close, *run(arrays))


def both(function, arrays, tangents, direction):
    """The output, its tangents, and the gradients."""
    out, pull = jax.vjp(function, *arrays)
    _, moved = jax.jvp(function, arrays, tangents)
    return out, moved, pull(direction)
