"""Decoding token by token with a cache equals the full forward pass, for every family and position encoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.tiny import POSITIONS, T, built, close, ids, inputs_of, logits_of, small, two_sided

from flaxformer_lite import registry
from flaxformer_lite.modules.cache import init_cache


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "transformer"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("windows", "scan"), [((0,), False), ((3, 0), True)])
def test_cached_decode_equals_full_forward(family, position, windows, scan):
    cfg = small(family, position=registry.resolve_class("positions", position)(), windows=windows, scan=scan)
    model, params = built(cfg)
    full = logits_of(model, params, **inputs_of(cfg, ids()))
    x = ids()
    prompt = 1 if two_sided(cfg) else 5
    cache, decoded, encoded = init_cache(cfg, 2, T), [], None
    tokens = inputs_of(cfg, x)["decoder_input_ids"] if two_sided(cfg) else x
    for start, stop in [(0, prompt), *((i, i + 1) for i in range(prompt, T))]:
        step = {"position_ids": jnp.arange(start, stop, dtype=jnp.int32)[None]}
        if two_sided(cfg):
            if encoded is None:
                encoded = model.apply({"params": params}, x, method="encode")
            hidden, cache = model.apply(
                {"params": params}, tokens[:, start:stop], encoded if start == 0 else None, cache=cache,
                cache_index=start, decoder_position_ids=step["position_ids"], method="decode",
            )  # fmt: skip
            head = model.apply({"params": params}, hidden, method="project")
        else:
            out = model.apply({"params": params}, tokens[:, start:stop], cache=cache, cache_index=start, **step)
            head, cache = out.logits, out.cache
        decoded.append(head)
    close(jnp.concatenate(decoded, axis=1), full, 1e-4)


def test_window_cache_keeps_only_its_window():
    cfg = small("gpt2", windows=(3, 0))
    shapes = [jax.tree.leaves(layer)[0].shape[1] for layer in init_cache(cfg, 2, T)]
    assert shapes == [3, T]
