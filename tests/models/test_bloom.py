"""ALiBi counts the tokens that the attention mask keeps, wherever the padding stands."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.models.skeletons.build_layers import init_cache
from tests.marks import daily
from tests.models.tiny import built, close, small
from tests.pretrained.fixtures import loaded

IDS = np.asarray([[5, 9, 30, 41, 2, 11, 17, 33, 8, 20]] * 2, np.int32)
MASK = np.asarray([[1, 1, 0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0, 1, 1, 1]], np.int32)
# torch 2.13, transformers 5.23: the first five logits of the last column of both rows, and of
# column 5 of the first.
LAST = [
    [-0.24865, -0.60347, -1.13959, -3.23034, 0.35386],
    [-0.56716, -0.20241, -1.52819, -3.04602, 0.00842],
]
MIDDLE = [-0.03109, 0.3234, -1.47486, -1.81236, 0.41403]


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, ids, mask, **cached):
    out = model.apply({"params": params}, ids, attention_mask=mask, **cached)
    return out.logits, out.cache


@pytest.mark.parametrize("attention", daily(["auto", "dense", "blockwise"], ["auto"]))
def test_padding_between_tokens_counts_nothing(attention):
    model, params = loaded("bloom_lm")
    model = model.clone(cfg=dataclasses.replace(model.cfg, attention=attention))
    logits, _ = run(model, params, IDS, MASK)
    np.testing.assert_allclose(logits[:, -1, :5], LAST, atol=1e-4)
    np.testing.assert_allclose(logits[0, 5, :5], MIDDLE, atol=1e-4)


@pytest.mark.parametrize("batch", daily([1, 2], [1]))
def test_nor_does_it_with_a_cache(batch):
    model, params = loaded("bloom_lm")
    cache = init_cache(model.cfg, batch, 10)
    _, cache = run(
        model, params, IDS[:batch, :8], MASK[:batch, :8], cache=cache, cache_index=jnp.int32(0)
    )
    for slot in (8, 9):
        position_ids = MASK[:batch].cumsum(axis=1)[:, slot : slot + 1] - 1
        logits, cache = run(
            model,
            params,
            IDS[:batch, slot : slot + 1],
            MASK[:batch],
            cache=cache,
            cache_index=jnp.int32(slot),
            position_ids=position_ids,
        )
    np.testing.assert_allclose(logits[:, -1, :5], LAST[:batch], atol=1e-4)


@pytest.mark.nightly
def test_a_row_with_gaps_is_the_row_without_them_under_scan():
    cfg = small("bloom", scan=True)
    model, params = built(cfg)
    whole, _ = run(model, params, IDS % cfg.vocab_size, MASK)
    for row in range(2):
        kept = MASK[row] == 1
        alone, _ = run(
            model,
            params,
            (IDS[row] % cfg.vocab_size)[kept][None],
            np.ones((1, kept.sum()), np.int32),
        )
        close(whole[row][kept], alone[0], 1e-4)
