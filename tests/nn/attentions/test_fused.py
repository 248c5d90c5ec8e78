"""Kernels, interpreted: equal to the dense form in value and gradient where they can do a call,
refused where not."""

import functools

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
    splash,
)
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from tests.marks import daily
from tests.nn.attentions.cases import On, by_keywords

SPLASH = by_keywords(splash.attend)
DENSE = by_keywords(dense.attend)

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


@pytest.mark.nightly
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


def test_negative_ids_are_documents_like_others():
    q, k, v, direction = inputs()
    ids = np.where(np.arange(T) < 100, -1, -2)[None].astype(np.int32)
    mask = masks.causal() & masks.segments(np.repeat(ids, B, axis=0)) & masks.padding(KEEP)
    compare(SPLASH, q, k, v, direction, tolerance=1e-4, mask=mask)


def test_splash_takes_sinks_and_cudnn_refuses_them():
    q, k, v, direction = inputs()

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(attend, q, sinks):
        run = functools.partial(attend, mask=MASKS["packed"])
        out, pull = jax.vjp(lambda q, sinks: run(q, k, v, sinks_N=sinks), q, sinks)
        return out, pull(direction)

    sinks = jnp.asarray([-1.0, 0.0, 1.0, 4.0])
    got, due = (gradient(attend, q, sinks) for attend in (SPLASH, DENSE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, due)
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


def test_auto_takes_splash_where_it_can_and_says_so_once(monkeypatch, caplog):
    q, k, v, _ = inputs()
    taken = []
    for name in ("splash", "dense"):
        module = registry.resolve("attentions", name)
        monkeypatch.setattr(module, "attend", lambda q, k, v, args, name=name: taken.append(name))
    dispatch._log_choice.cache_clear()
    with caplog.at_level("INFO", "flaxformer_lite"):
        for mask in (masks.causal(), masks.causal(), ~masks.causal()):
            attention(q, k, v, mask=mask, sharding=On("tpu"))
        attention(q[:, :9], k[:, :9], v[:, :9], sharding=On("tpu"))
    assert taken == ["splash", "splash", "dense", "dense"]
    said = [record.message for record in caplog.records]
    assert said == [
        "attention: splash",
        "attention: dense (not splash, the mask is not an intersection of windows, documents and"
        " padding)",
        "attention: dense (at most 128 positions)",
    ]


def test_auto_takes_no_kernel_that_no_device_has_run(monkeypatch):
    """cuDNN's is asked for by name (dispatch.KERNELS)."""
    q, k, v, _ = inputs(dtype=jnp.bfloat16)
    monkeypatch.setattr(cudnn, "attend", None)
    assert attention(q, k, v, mask=masks.causal(), sharding=On("gpu")).shape == q.shape
    assert dispatch.KERNELS == {"tpu": "splash"}


def test_kernels_of_tpus_are_not_for_gpus():
    with pytest.raises(ConfigError, match="the kernel is for TPUs, not for gpu"):
        SPLASH(*inputs()[:3], sharding=On("gpu"))


@pytest.mark.parametrize(("name", "home"), [("cudnn", "gpu"), ("splash", "tpu")])
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
