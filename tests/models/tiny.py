"""Tiny models of every family, with noise on every weight, and the inputs they take."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite import registry

FAMILIES = registry.available("models")
POSITIONS = registry.available("positions")
SMALL = dict(vocab_size=37, d_model=16, num_heads=4, head_dim=4, mlp_dim=24, max_length=16, dropout=0.0)
T = 10


def small(family, **overrides):
    layers = {"encoder_layers": 2} if family == "bert" else {"decoder_layers": 2}
    if family in ("t5", "transformer"):
        layers = {"encoder_layers": 2, "decoder_layers": 2}
    head = {"head": "masked_lm"} if family == "bert" else {}
    return registry.resolve("models", family).config("tiny", **{**SMALL, **layers, **head, **overrides})


def ids(seed=0, batch=2, length=T, vocab=37):
    return jnp.asarray(np.random.default_rng(seed).integers(1, vocab, (batch, length)), jnp.int32)


def two_sided(cfg):
    return bool(cfg.encoder_layers and cfg.decoder_layers)


def inputs_of(cfg, x):
    return {"input_ids": x, "decoder_input_ids": jnp.roll(x, 1, axis=1)} if two_sided(cfg) else {"input_ids": x}


def segments_of(cfg, segments):
    return {"segment_ids": segments} | ({"decoder_segment_ids": segments} if two_sided(cfg) else {})


def built(cfg, seed=0):
    model = registry.resolve("models", cfg.family).Model(cfg)
    params = model.init(jax.random.key(seed), **inputs_of(cfg, ids()))["params"]
    # Fresh norms and biases are ones and zeros, which would hide a swapped or missing one.
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [x + 0.1 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return model, jax.tree.unflatten(tree, noisy)


def logits_of(model, params, **inputs):
    return model.apply({"params": params}, **inputs).logits


def close(a, b, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance)
