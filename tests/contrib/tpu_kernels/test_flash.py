"""The TPU kernels of contrib, interpreted: equal to the dense form in value and gradient where they
can do a call, refused where not."""

import collections
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.contrib.tpu_kernels import flash_causal_kernel
from flaxformer_lite.contrib.tpu_kernels.attentions import flash_causal, flash_relative_bias
from flaxformer_lite.nn.attentions import splash
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import Shards
from tests.marks import daily
from tests.nn.attentions.cases import On, by_keywords
from tests.nn.attentions.test_fused import (
    DENSE,
    KEEP,
    MASKS,
    SEGMENTS,
    B,
    H,
    K,
    N,
    T,
    compare,
    inputs,
)

CAUSAL = by_keywords(flash_causal.attend)
RELATIVE = by_keywords(flash_relative_bias.attend)
LONG_IDS = np.repeat([[1, 1, 2, 3, 3], [1, 2, 2, 2, 0]], 128, axis=1).astype(np.int32)
LONG_IDS[:, 300:310] = 4  # a short document inside a block of 128
LONG_KEEP = np.ones(LONG_IDS.shape, bool)
LONG_KEEP[1, :140] = False  # the first block and more of a row padded on the left


PACKED = masks.causal() & masks.segments(LONG_IDS)
PADDED = masks.causal() & masks.padding(LONG_KEEP)
CASES = [
    (PACKED, (4, 2), 32, 640),
    (PADDED, (2, 2), 32, 640),
    (PACKED & masks.padding(LONG_KEEP), (2, 1), 96, 640),
    (masks.causal(), (4, 2), 64, 200),
    (masks.causal() & masks.segments(SEGMENTS), (4, 1), 64, 200),
    (masks.causal(), (1, 1), 64, 1024),
]


@pytest.mark.parametrize(("mask", "heads", "width", "length"), daily(CASES, CASES[:2]))
def test_causal_equals_dense_in_value_and_gradient(monkeypatch, mask, heads, width, length):
    if length == 640:  # five blocks of two parts, or of four on the diagonal
        monkeypatch.setattr(splash, "BLOCKS", (128,))
        monkeypatch.setattr(splash, "AT_ONCE", 64)
        monkeypatch.setattr(flash_causal_kernel, "DIAGONAL_PART", 32)
    N, K = heads
    shapes = [(B, length, count, width) for count in (N, K, K, N)]
    q, k, v, direction = map(jax.random.normal, jax.random.split(jax.random.key(0), 4), shapes)
    compare(CAUSAL, q, k, v, direction, tolerance=1e-4, mask=mask, scale=0.2)


def test_causal_does_not_compute_blocks_of_other_documents(monkeypatch):
    monkeypatch.setattr(splash, "BLOCKS", (128,))
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 640, 1, 32))
    ids = np.repeat([[1, 1, 2, 2, 2]], 128, axis=1).astype(np.int32)
    # A product with them would be NaN, whatever a mask hides.
    k, v = (x.at[:, :256].set(jnp.nan) for x in (k, v))

    def total(q, k, v):
        out = CAUSAL(q, k, v, mask=masks.causal() & masks.segments(ids))
        return out[:, 256:].sum()

    value, gradients = jax.value_and_grad(total, argnums=(0, 1, 2))(q, k, v)
    assert np.isfinite(value)
    for gradient in gradients:
        assert np.isfinite(gradient[:, 256:]).all()


def test_causal_pads_to_the_block_of_least_work():
    assert flash_causal._block(200) == 256
    assert flash_causal._block(2048) == 1024
    assert flash_causal._block(6016) == 1024  # 128 is the largest that divides it
    assert flash_causal._block(1100) == 384


@pytest.mark.parametrize("packed", [True, False])
def test_causal_takes_each_form_of_a_step_as_often_as_it_says(monkeypatch, packed):
    taken = collections.Counter()
    run = flash_causal_kernel._run

    def count(step, *rest):
        def counted(form):
            jax.debug.callback(functools.partial(taken.update, [form]))
            step(form)

        run(counted, *rest)

    monkeypatch.setattr(flash_causal_kernel, "_run", count)
    monkeypatch.setattr(splash, "BLOCKS", (128,))
    q = jnp.zeros((1, 600, 2, 32))
    k = v = jnp.zeros((1, 600, 1, 32))
    mask = masks.causal()
    if packed:
        mask &= masks.segments(np.ones((1, 600), np.int32))
    pull = jax.vjp(lambda *x: CAUSAL(*x, mask=mask), q, k, v)[1]
    pull(jnp.zeros((1, 600, 2, 32)))
    jax.effects_barrier()
    diagonal = flash_causal_kernel.Form(is_diagonal=True, by_ids=packed)
    plain = flash_causal_kernel.Form(is_diagonal=False, by_ids=False)
    # Of two heads, forwards and backwards.
    assert taken == {diagonal: 4 * 5, plain: 4 * 10}
    program = str(jax.make_jaxpr(lambda *x: CAUSAL(*x, mask=mask))(q, k, v))
    assert json.dumps([5, 0, 10] if packed else [5, 10]) in program


@pytest.mark.nightly
def test_causal_computes_in_bfloat16():
    q, k, v, direction = inputs(dtype=jnp.bfloat16)
    compare(CAUSAL, q, k, v, direction, tolerance=6e-2, mask=MASKS["packed"])


def test_causal_says_what_it_cannot():
    q, k, v, _ = inputs()
    causal = masks.causal()
    for shape, options, reason in (
        (q.shape, {}, "causal attention within a row"),
        (q.shape, {"mask": causal & masks.window(40)}, "without a window"),
        (q.shape, {"mask": causal, "softcap": 5.0}, "no soft cap"),
        (q.shape, {"mask": causal, "sinks_N": jnp.zeros(N)}, "no sinks"),
        (q.shape, {"mask": causal, "bias": jnp.zeros((1, N, T, T))}, "adds no bias"),
        ((B, 150, N, H), {"mask": causal}, "within a row"),
    ):
        with pytest.raises(ConfigError, match=f"attention 'flash_causal': .*{reason}"):
            CAUSAL(jnp.zeros(shape), k, v, **options)
    with pytest.raises(ConfigError, match="a head of width 384 does not fit"):
        CAUSAL(*[jnp.zeros((1, 8, 1, 384))] * 3, mask=causal)
    long = [jnp.zeros((1, 2**17, heads, 64)) for heads in (8, 1, 1)]
    with pytest.raises(ConfigError, match="does not fit into on-chip memory"):
        CAUSAL(*long, mask=causal)


def test_negative_ids_are_documents_like_others():
    q, k, v, direction = inputs()
    ids = np.where(np.arange(T) < 100, -1, -2)[None].astype(np.int32)
    mask = masks.causal() & masks.segments(np.repeat(ids, B, axis=0)) & masks.padding(KEEP)
    compare(CAUSAL, q, k, v, direction, tolerance=1e-4, mask=mask)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("position", "mask", "scale"),
    [
        ("t5_buckets", masks.padding(KEEP), 1.0),
        ("alibi", masks.causal() & masks.window(50) & masks.segments(SEGMENTS), None),
    ],
)
def test_relative_equals_dense_in_value_and_gradient_of_the_bias_too(position, mask, scale):
    encoding = registry.resolve_class("positions", position)()
    q, k, v, direction = inputs(T)
    k, v = (jnp.repeat(x, N // K, axis=2) for x in (k, v))
    positions = jnp.arange(T, dtype=jnp.int32)[None]
    sizes = encoding.tables(d_model=N * H, num_heads=N, head_dim=H, max_length=T)
    key = jax.random.key(7)
    tables = {name: jax.random.normal(key, table.shape) for name, table in sizes.items()}

    @functools.partial(jax.jit, static_argnums=0)
    def both(attend, tables, q, k, v):
        def run(tables, q, k, v):
            bias = encoding.attention_bias(
                tables, positions, positions, bidirectional=position == "t5_buckets"
            )
            return attend(q, k, v, mask=mask, bias=bias, scale=scale)

        out, pull = jax.vjp(run, tables, q, k, v)
        return out, pull(direction)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

    jax.tree.map(close, both(RELATIVE, tables, q, k, v), both(DENSE, tables, q, k, v))


@pytest.mark.nightly
# all together; two tiles of columns
@pytest.mark.parametrize(("heads", "width", "length"), [(4, 32, 200), (3, 48, 150)])
def test_relative_crosses_without_a_bias(heads, width, length):
    shapes = [(B, n, heads, width) for n in (T, length, length, T)]
    q, k, v, direction = map(jax.random.normal, jax.random.split(jax.random.key(1), 4), shapes)
    mask = masks.segments(SEGMENTS, SEGMENTS[:, :length])  # documents whose source is not there
    compare(RELATIVE, q, k, v, direction, tolerance=1e-4, mask=mask)


def test_relative_says_what_it_cannot():
    q, k, v, _ = inputs()
    alibi = registry.resolve_class("positions", "alibi")()
    places = jnp.arange(T)[None]
    bias = alibi.attention_bias({}, places, places, bidirectional=False)
    for options, reason in (
        ({"bias": jnp.zeros((1, N, T, T))}, "only on the distance"),
        ({"bias": bias}, "no grouped heads"),
        ({"bias": bias, "softcap": 2.0}, "no soft cap"),
        ({"bias": bias, "sinks_N": jnp.zeros(N)}, "no sinks"),
        ({}, "no grouped heads"),
        ({"bias": bias, "sharding": On("tpu", "TPU v4")}, "chips before v5 cannot roll"),
    ):
        message = f"'flash_relative_bias': .*{reason}.*; set model.attention=auto"
        with pytest.raises(ConfigError, match=message):
            RELATIVE(q, k, v, **options)
    for shape, options, reason in (
        ((1, T, 2, 64), {"mask": masks.causal()}, "without a bias"),
        ((1, T, 2, 128), {}, "without a bias"),
        ((1, T, 13, 48), {}, "fill whole lanes"),
        ((1, 2048, 4, 96), {}, "too many columns for the memory of a core"),
    ):
        with pytest.raises(ConfigError, match=f"attention 'flash_relative_bias': .*{reason}"):
            RELATIVE(*[jnp.zeros(shape)] * 3, **options)


def test_fewer_heads_than_devices_are_whole_on_each(monkeypatch):
    shards = lambda self, letter: Shards(4 if letter == "N" else 1, "tensor")  # noqa: E731
    monkeypatch.setattr(On, "num_shards", shards)
    q = jnp.zeros((1, T, 2, 64))
    assert flash_relative_bias.unsupported_reason(q, q, q, Arguments(sharding=On("tpu"))) == ""
