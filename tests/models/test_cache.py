"""Decoding token by token with a cache equals the full forward pass, for every position encoding,
windows and scan."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import registry
from flaxformer_lite.models.skeletons.build_layers import init_cache
from flaxformer_lite.nn.modules.layout import stack_layers
from tests.models.tiny import (
    DECODERS,
    T,
    built,
    close,
    ids,
    inputs_of,
    is_encoder_decoder,
    logits_of,
    small,
)


def decoded(model, params, tokens, encoded, prompt):
    """The logits of a prompt in one call and of every later token in one of its own."""
    cfg = model.cfg

    @jax.jit
    def step(params, tokens, index, cache, encoded):
        position_ids = index + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        if not is_encoder_decoder(cfg):
            out = model.apply(
                {"params": params},
                tokens,
                position_ids=position_ids,
                cache=cache,
                cache_index=index,
            )
            return out.logits, out.cache
        x, cache = model.apply(
            {"params": params},
            tokens,
            encoded,
            decoder_position_ids=position_ids,
            cache=cache,
            cache_index=index,
            method="decode",
        )
        return model.apply({"params": params}, x, method="project").logits(), cache

    cache = init_cache(cfg, len(tokens), T)
    out = []
    for start, stop in [(0, prompt), *((i, i + 1) for i in range(prompt, T))]:
        logits, cache = step(
            params, tokens[:, start:stop], jnp.int32(start), cache, encoded if start == 0 else None
        )
        out.append(logits)
    return jnp.concatenate(out, axis=1)


@pytest.mark.parametrize(("family", "position"), DECODERS)
def test_cached_decode_equals_full_forward(family, position):
    """In a loop and scanned, and with the cache of a lone example, which has no batch axis.

    Only a family's own encoding is scanned with such a cache: the layout is the stack's matter,
    whatever is encoded.
    """
    windows = (3, 0)
    cfg = small(family, position=registry.resolve_class("positions", position)(), windows=windows)
    model, params = built(cfg)
    inputs = inputs_of(cfg, ids())
    encoded = None
    prompt = 5
    full = logits_of(model, params, **inputs)
    *source, tokens = inputs.values()
    if source:
        encoded = jax.jit(lambda p, x: model.apply({"params": p}, x, method="encode"))(
            params, *source
        )
        prompt = 1
    scanned = type(model)(dataclasses.replace(cfg, scan=True)), stack_layers(params, len(windows))
    cases = [(1, 1, (model, params)), (2, prompt, scanned)]
    if cfg.position == small(family).position:
        cases.append((1, prompt, scanned))
    for batch, begun, stack in cases:
        read = jax.tree.map(lambda x, batch=batch: x[:batch], encoded)
        close(decoded(*stack, tokens[:batch], read, begun), full[:batch], 1e-4)


def test_window_cache_keeps_only_its_window():
    cfg = small("gpt2", windows=(3, 0))
    shapes = [jax.tree.leaves(layer)[0].shape[2] for layer in init_cache(cfg, 2, T)]
    assert shapes == [3, T]


@pytest.mark.parametrize("heads", [4, 2], ids=["multi-head", "grouped"])
def test_no_token_copies_the_cache_of_a_lone_example(heads):
    cfg = small("gpt2", num_kv_heads=heads)
    model, params = built(cfg)

    def write(index, state):
        tokens, cache = state
        out = model.apply(
            {"params": params},
            tokens,
            position_ids=index[None, None],
            cache=cache,
            cache_index=index,
        )
        return out.logits.argmax(axis=-1).astype(jnp.int32), out.cache

    program = jax.jit(
        lambda tokens, cache: jax.lax.fori_loop(0, T, write, (tokens, cache)), donate_argnums=1
    )
    text = program.lower(ids()[:1, :1], init_cache(cfg, 1, T)).compile().as_text()
    kept = (
        rf"= f32\[(1,)?{cfg.kv_heads},({T},{cfg.head_width}|{cfg.head_width},{T})\]\S*"
        r" (copy|transpose)\("
    )
    assert not re.findall(kept, text)
