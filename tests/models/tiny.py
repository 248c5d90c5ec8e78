"""Tiny models of every family, with noise on every weight, and the inputs they take."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from tests.marks import daily

FAMILIES = ("bert", "gpt2", "llama", "t5", "transformer")  # one of each kind: the whole contract
# One of each skeleton every day; a second of a skeleton nightly.
DAILY_FAMILIES = [
    pytest.param(name, marks=pytest.mark.nightly if name in ("llama", "transformer") else [])
    for name in FAMILIES
]
OWN = ("word2vec", "static_embedding", "model2vec")  # no layers, so nothing of the contract
# Compositions of parts that other families test; tests/pretrained/test_families.py compares them
# with torch, and the rest is nightly.
COMPOSED = {
    path.stem for path in (Path(__file__).parents[1] / "pretrained/families").glob("*.json")
}

POSITIONS = registry.available("positions")
# One encoding of each hook in a decoder, one in an encoder-decoder and in an encoder; others are
# nightly, as tests/nn/positions has a contract for each.
DAILY = {
    ("gpt2", "rope"),
    ("t5", "t5_buckets"),
    ("bert", "learned"),
}
OWNERS = [("llama", "rope"), ("transformer", "sinusoidal")]


CASES = [
    *(("gpt2", position) for position in POSITIONS),
    *OWNERS,
    *(("t5", position) for position in POSITIONS),
]
PAIRS = daily([*CASES, ("bert", "learned"), ("bert", "shaw")], DAILY)
# A quarter of a head turns.
TURNING = ("gpt_neox", "gptj", "stablelm", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
SMALL = {
    "vocab_size": 37,
    "d_model": 16,
    "num_heads": 4,
    "head_dim": 4,
    "mlp_dim": 24,
    "max_length": 16,
    "dropout": 0.0,
}
T = 10


def small(family, number=2, **overrides):
    plugin = registry.resolve("models", family)
    layers = {
        f"{side}_layers": number for side in ("encoder", "decoder") if side in plugin.Model.skeleton
    }
    head = {"head": "masked_lm"} if "masked_lm" in plugin.Model.heads else {}
    # A quarter of four dimensions is no pair.
    turning = {"head_dim": 8} if family in TURNING else {}
    return plugin.config("tiny", **{**SMALL, **turning, **layers, **head, **overrides})


def ids(seed=0, batch=2, length=T, vocab=37):
    return jnp.asarray(np.random.default_rng(seed).integers(1, vocab, (batch, length)), jnp.int32)


def distance(tree, due):
    """The norm of the difference of two trees, relative to the second's if that exceeds 1."""
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(due), strict=True)
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in leaves]
    apart = sum(np.square(a - b).sum() for a, b in pairs)
    return np.sqrt(apart / max(1.0, sum(np.square(b).sum() for _, b in pairs)))


def is_encoder_decoder(cfg):
    return bool(cfg.encoder_layers and cfg.decoder_layers)


def inputs_of(cfg, x):
    return (
        {"input_ids": x, "decoder_input_ids": jnp.roll(x, 1, axis=1)}
        if is_encoder_decoder(cfg)
        else {"input_ids": x}
    )


def segments_of(cfg, segments):
    return {"segment_ids": segments} | (
        {"decoder_segment_ids": segments} if is_encoder_decoder(cfg) else {}
    )


@functools.cache
def shapes_of(model):
    inputs = inputs_of(model.cfg, ids())
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]


def built(cfg, seed=0):
    """A model with noise on every weight: fresh norms and biases are ones and zeros, which hide a
    swapped or missing one."""
    model = registry.resolve("models", cfg.family).Model(cfg)
    shapes = shapes_of(model)
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(centre + 0.2 * rng.standard_normal(leaf.shape), leaf.dtype)

    return model, jax.tree_util.tree_map_with_path(fill, shapes)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, **inputs):
    return model.apply({"params": params}, **inputs).logits


def close(a, b, tolerance=2e-5):
    np.testing.assert_allclose(
        np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance
    )
