"""Decoding token by token with a cache equals the full forward pass, for every position encoding, windows and scan."""

import re

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import registry
from flaxformer_lite.models.skeletons.parts import init_cache
from tests.models.tiny import PAIRS, T, built, close, ids, inputs_of, is_encoder_decoder, logits_of, small


@pytest.mark.parametrize(("family", "position"), [pair for pair in PAIRS if pair[0] != "bert"])
@pytest.mark.parametrize(("batch", "windows", "scan"), [(1, (0,), False), (2, (3, 0), True), (1, (3, 0), True)])
def test_cached_decode_equals_full_forward(family, position, batch, windows, scan):
    cfg = small(family, position=registry.resolve_class("positions", position)(), windows=windows, scan=scan)
    model, params = built(cfg)
    inputs = jax.tree.map(lambda x: x[:batch], inputs_of(cfg, ids()))
    full = logits_of(model, params, **inputs)
    encoded = None
    if is_encoder_decoder(cfg):
        tokens, prompt = inputs["decoder_input_ids"], 1
        encoded = jax.jit(lambda p, x: model.apply({"params": p}, x, method="encode"))(params, inputs["input_ids"])
    else:
        tokens, prompt = inputs["input_ids"], 5

    @jax.jit
    def step(params, tokens, index, cache, encoded):
        position_ids = index + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        if not is_encoder_decoder(cfg):
            out = model.apply({"params": params}, tokens, position_ids=position_ids, cache=cache, cache_index=index)
            return out.logits, out.cache
        x, cache = model.apply({"params": params}, tokens, encoded, decoder_position_ids=position_ids, cache=cache,
                               cache_index=index, method="decode")  # fmt: skip
        return model.apply({"params": params}, x, method="project").logits(), cache

    cache, decoded = init_cache(cfg, batch, T), []
    for start, stop in [(0, prompt), *((i, i + 1) for i in range(prompt, T))]:
        logits, cache = step(params, tokens[:, start:stop], jnp.int32(start), cache, encoded if start == 0 else None)
        decoded.append(logits)
    close(jnp.concatenate(decoded, axis=1), full, 1e-4)


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
        out = model.apply({"params": params}, tokens, position_ids=index[None, None], cache=cache, cache_index=index)
        return out.logits.argmax(axis=-1).astype(jnp.int32), out.cache

    program = jax.jit(lambda tokens, cache: jax.lax.fori_loop(0, T, write, (tokens, cache)), donate_argnums=1)
    text = program.lower(ids()[:1, :1], init_cache(cfg, 1, T)).compile().as_text()
    kept = rf"= f32\[(1,)?{cfg.kv_heads},({T},{cfg.head_width}|{cfg.head_width},{T})\]\S* (copy|transpose)\("
    assert not re.findall(kept, text)
