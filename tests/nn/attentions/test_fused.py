"""Kernels, interpreted: equal to the dense form in value and gradient where they can do a call,
refused where not."""

import collections
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import attention, build_model, registry
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.nn.attentions import (
    cudnn,
    dense,
    dispatch,
    flash_causal,
    flash_causal_kernel,
    flash_relative_bias,
    splash,
)
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import Shards
from tests.marks import daily
from tests.nn.attentions.cases import On, by_keywords

SPLASH, CAUSAL, RELATIVE, DENSE = (
    by_keywords(module.attend) for module in (splash, flash_causal, flash_relative_bias, dense)
)

B = 2  # T is no multiple of a block
T = 200
N = 4
K = 2
H = 64
SEGMENTS = np.sort(np.random.default_rng(0).integers(1, 5, (B, T)), axis=1).astype(np.int32)
SEGMENTS[0, -20:] = 0
KEEP = np.ones((B, T), bool)
KEEP[1, :30] = False
MASKS = {
    "none": None,
    "packed": masks.causal() & masks.segments(SEGMENTS),
    "padded left": masks.causal() & masks.padding(KEEP),  # the first rows see nothing
    "window": masks.causal() & masks.window(40) & masks.segments(SEGMENTS),
    "both ways": masks.window(20, 20) & masks.padding(KEEP) & masks.segments(SEGMENTS),
}


def inputs(length=T, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(B, T, N, H), (B, length, K, H), (B, length, K, H), (B, T, N, H)]
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def compare(attend, q, k, v, direction, tolerance=1e-5, **options):
    @functools.partial(jax.jit, static_argnums=0)
    def both(attend, q, k, v):
        out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, **options), q, k, v)
        return out, pull(direction)

    def close(a, b):
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance
        )

    jax.tree.map(close, both(attend, q, k, v), both(DENSE, q, k, v))


@pytest.mark.parametrize("name", daily(MASKS, ("packed",)))
def test_splash_equals_dense_in_value_and_gradient(name):
    compare(
        SPLASH, *inputs(), mask=MASKS[name], scale=0.2, softcap=5.0 if name == "packed" else 0.0
    )


def test_splash_multiplies_the_largest_block_in_parts():
    length = splash.BLOCKS[0]
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, direction = (jax.random.normal(key, (1, length, 1, 64)) for key in keys)
    ids = np.arange(length)[None] // 700 + 1
    mask = masks.causal() & masks.segments(ids.astype(np.int32))
    compare(SPLASH, q, k, v, direction, tolerance=1e-4, mask=mask)


LONG_IDS = np.repeat([[1, 1, 2, 3, 3], [1, 2, 2, 2, 0]], 128, axis=1).astype(np.int32)
LONG_IDS[:, 300:310] = 4  # a short document inside a block of 128
LONG_KEEP = np.ones(LONG_IDS.shape, bool)
LONG_KEEP[1, :140] = False  # the first block and more of a row padded on the left


@pytest.mark.parametrize(
    ("mask", "heads", "width", "length"),
    daily(
        [
            (masks.causal(), (4, 2), 64, 200),
            (masks.causal() & masks.segments(SEGMENTS), (4, 1), 64, 200),
            (masks.causal() & masks.segments(LONG_IDS), (4, 2), 32, 640),
            (masks.causal() & masks.padding(LONG_KEEP), (2, 2), 32, 640),
            (
                masks.causal() & masks.segments(LONG_IDS) & masks.padding(LONG_KEEP),
                (2, 1),
                96,
                640,
            ),
            (masks.causal(), (1, 1), 64, 1024),
        ],
        [
            (masks.causal() & masks.segments(LONG_IDS), (4, 2), 32, 640),
            (masks.causal() & masks.padding(LONG_KEEP), (2, 2), 32, 640),
        ],
    ),
)
def test_causal_equals_dense_in_value_and_gradient(monkeypatch, mask, heads, width, length):
    if length == 640:  # five blocks of two parts, or of four on the diagonal
        monkeypatch.setattr(splash, "BLOCKS", (128,))
        monkeypatch.setattr(splash, "AT_ONCE", 64)
        monkeypatch.setattr(flash_causal_kernel, "DIAGONAL_PART", 32)
    N, K = heads
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, direction = (
        jax.random.normal(key, (B, length, count, width))
        for key, count in zip(keys, (N, K, K, N), strict=True)
    )
    compare(CAUSAL, q, k, v, direction, tolerance=1e-4, mask=mask, scale=0.2)


@pytest.mark.parametrize("attend", [SPLASH, CAUSAL], ids=["splash", "flash_causal"])
def test_negative_ids_are_documents_like_others(attend):
    q, k, v, direction = inputs()
    ids = np.where(np.arange(T) < 100, -1, -2)[None].astype(np.int32)
    mask = masks.causal() & masks.segments(np.repeat(ids, B, axis=0)) & masks.padding(KEEP)
    compare(attend, q, k, v, direction, tolerance=1e-4, mask=mask)


def test_causal_does_not_compute_blocks_of_other_documents(monkeypatch):
    monkeypatch.setattr(splash, "BLOCKS", (128,))
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, 640, 1, 32)) for key in keys)
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


def test_splash_takes_sinks_and_the_other_kernels_refuse_them():
    q, k, v, direction = inputs()

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(attend, q, sinks):
        run = functools.partial(attend, mask=MASKS["packed"])
        out, pull = jax.vjp(lambda q, sinks: run(q, k, v, sinks_N=sinks), q, sinks)
        return out, pull(direction)

    sinks = jnp.asarray([-1.0, 0.0, 1.0, 4.0])
    got, due = (gradient(attend, q, sinks) for attend in (SPLASH, DENSE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, due)
    with pytest.raises(ConfigError, match=r"flash_relative_bias.*has no sinks"):
        RELATIVE(q[:, :, :2], k, v, sinks_N=sinks[:2])
    args = Arguments(sinks_N=sinks, sharding=On(platform="gpu"))
    short = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    assert cudnn.unsupported_reason(*short, args) == "the kernel has no sinks"


@pytest.mark.nightly
def test_splash_crosses_and_computes_in_bfloat16():
    q, k, v, direction = inputs(150, jnp.bfloat16)
    mask = masks.segments(SEGMENTS, SEGMENTS[:, :150])  # documents whose source is not there
    compare(SPLASH, q, k, v, direction, tolerance=6e-2, mask=mask)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bias": jnp.zeros((1, N, T, T))}, "adds no bias"),
        ({"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}, "drops no weights"),
        ({"q_index": jnp.arange(T)}, "slots of a cache"),
        ({"mask": masks.causal() | masks.prefix(KEEP)}, "not an intersection"),
        ({"mask": jnp.ones((1, T, T), bool)}, "not an intersection"),
    ],
)
def test_splash_says_what_it_cannot(options, reason):
    q, k, v, _ = inputs()
    with pytest.raises(
        ConfigError, match=rf"attention 'splash': .*{reason}.*; set model.attention=auto"
    ):
        SPLASH(q, k, v, **options)


def test_auto_takes_the_first_kernel_that_can_and_says_so_once(monkeypatch, caplog):
    q, k, v, _ = inputs()
    taken = []
    for name in ("flash_causal", "splash", "dense"):
        module = registry.resolve("attentions", name)
        monkeypatch.setattr(module, "attend", lambda q, k, v, args, name=name: taken.append(name))
    dispatch._say.cache_clear()
    with caplog.at_level("INFO", "flaxformer_lite"):
        window = masks.causal() & masks.window(40)
        for mask in (masks.causal(), masks.causal(), window, ~masks.causal()):
            attention(q, k, v, mask=mask, sharding=On("tpu"))
        attention(q[:, :9], k[:, :9], v[:, :9], sharding=On("tpu"))
    assert taken == ["flash_causal", "flash_causal", "splash", "dense", "dense"]
    said = [record.message for record in caplog.records]
    assert said[0] == "attention: flash_causal"
    assert said[1].startswith("attention: splash")
    assert len(said) == 4
    assert said[2].startswith(
        "attention: dense (not flash_relative_bias, the kernel has no grouped heads"
    )
    assert said[2].endswith(
        "; not splash, the mask is not an intersection of windows, documents and padding)"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("position", "mask", "scale"),
    [
        ("t5_buckets", masks.padding(KEEP), 1.0),
        pytest.param(
            "alibi",
            masks.causal() & masks.window(50) & masks.segments(SEGMENTS),
            None,
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_relative_equals_dense_in_value_and_gradient_of_the_bias_too(position, mask, scale):
    encoding = registry.resolve_class("positions", position)()
    q, k, v, direction = inputs(T)
    k, v = (jnp.repeat(x, N // K, axis=2) for x in (k, v))
    positions = jnp.arange(T, dtype=jnp.int32)[None]
    tables = {
        name: jax.random.normal(jax.random.key(7), table.shape)
        for name, table in encoding.tables(
            d_model=N * H, num_heads=N, head_dim=H, max_length=T
        ).items()
    }

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
@pytest.mark.parametrize(
    ("heads", "width", "length"), daily([(4, 32, 200), (3, 48, 150)], [(3, 48, 150)])
)  # all together; two tiles of columns
def test_relative_crosses_without_a_bias(heads, width, length):
    keys = jax.random.split(jax.random.key(1), 4)
    q, k, v, direction = (
        jax.random.normal(key, (B, n, heads, width))
        for key, n in zip(keys, (T, length, length, T), strict=True)
    )
    mask = masks.segments(SEGMENTS, SEGMENTS[:, :length])  # documents whose source is not there
    compare(RELATIVE, q, k, v, direction, tolerance=1e-4, mask=mask)


def test_relative_says_what_it_cannot():
    q, k, v, _ = inputs()
    bias = registry.resolve_class("positions", "alibi")().attention_bias(
        {}, jnp.arange(T)[None], jnp.arange(T)[None], bidirectional=False
    )
    for options, reason in (
        ({"bias": jnp.zeros((1, N, T, T))}, "only on the distance"),
        ({"bias": bias}, "no grouped heads"),
        ({"bias": bias, "softcap": 2.0}, "no soft cap"),
        ({}, "no grouped heads"),
        ({"bias": bias, "sharding": On("tpu", "TPU v4")}, "chips before v5 cannot roll"),
    ):
        with pytest.raises(
            ConfigError,
            match=rf"attention 'flash_relative_bias': .*{reason}.*; set model.attention=auto",
        ):
            RELATIVE(q, k, v, **options)
    for shape, options, reason in (
        ((1, T, 2, 64), {"mask": masks.causal()}, "without a bias"),
        ((1, T, 2, 128), {}, "without a bias"),
        ((1, T, 13, 48), {}, "fill whole lanes"),
        (
            (1, 2048, 4, 96),
            {},
            "too many columns for the memory of a core",
        ),  # the TPU compiler ran out of it
    ):
        with pytest.raises(ConfigError, match=f"attention 'flash_relative_bias': .*{reason}"):
            RELATIVE(*[jnp.zeros(shape)] * 3, **options)


def test_fewer_heads_than_devices_are_whole_on_each(monkeypatch):
    monkeypatch.setattr(
        On, "num_shards", lambda self, letter: Shards(4 if letter == "N" else 1, "tensor")
    )
    q = jnp.zeros((1, T, 2, 64))
    assert flash_relative_bias.unsupported_reason(q, q, q, Arguments(sharding=On("tpu"))) == ""


def test_kernels_of_tpus_are_not_for_gpus():
    with pytest.raises(ConfigError, match="the kernel is for TPUs, not for gpu"):
        SPLASH(*inputs()[:3], sharding=On("gpu"))


@pytest.mark.parametrize(
    ("name", "home"),
    [("cudnn", "gpu"), ("splash", "tpu"), ("flash_causal", "tpu"), ("flash_relative_bias", "tpu")],
)
def test_a_kernel_asked_for_elsewhere_is_refused_at_the_door(name, home):
    with pytest.raises(
        ConfigError,
        match=rf"{name}': is a kernel for {home} devices, but these are cpu; set .*=auto",
    ):
        attention(*inputs()[:3], implementation=name)
    with pytest.raises(ConfigError, match=f"a kernel for {home} devices"):
        build_model("gpt2", "tiny", attention=name).init(
            jax.random.key(0), jnp.zeros((1, 4), jnp.int32)
        )


@pytest.mark.parametrize(
    ("length", "name"), [(200, "dense"), (300, "chunked_causal"), (800, "blockwise")]
)
def test_on_a_cpu_the_form_goes_by_the_length(monkeypatch, length, name):
    monkeypatch.setattr(registry.resolve("attentions", name), "attend", lambda *arrays: name)
    q = jnp.zeros((1, length, 2, 8))
    assert attention(q, q, q, mask=masks.causal()) == name


def test_an_unknown_implementation_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"no 'flash'.*choose from blockwise, chunked_causal, cudnn, dense"
    ):
        attention(*inputs()[:3], implementation="flash")
