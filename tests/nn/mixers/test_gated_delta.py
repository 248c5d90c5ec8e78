"""Gated DeltaNet: packed documents, padded prompts and single steps compute what one row does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.mixers.gated_delta import GatedDeltaConfig

RECORD = GatedDeltaConfig(key_heads=2, value_heads=4, key_dim=6, value_dim=8)
D = 16
T = 9
START = 4


@pytest.mark.nightly
def test_rows_alone_packed_padded_and_step_by_step():
    module = RECORD.module(Execution(), causal=True)
    x = jax.random.normal(jax.random.key(0), (1, T, D))
    variables = jax.jit(module.init)(jax.random.key(1), x)
    alone = x[:, START:]
    ids = np.repeat([1, 2], [START, T - START])[None]
    kept = np.arange(T)[None] >= START

    @jax.jit
    def all_ways(variables):
        apply = lambda x, **options: module.apply(variables, x, **options)  # noqa: E731
        cache = RECORD.init_cache(1, T, D, jnp.float32)
        padded, cache = apply(x, cache=cache, mask=masks.padding(jnp.asarray(kept)))
        other = RECORD.init_cache(1, T, D, jnp.float32)
        steps = []
        for t in range(T - START):
            y, other = apply(alone[:, t : t + 1], cache=other)
            steps.append(y)
        packed = apply(x, mask=masks.segments(jnp.asarray(ids)))
        ways = packed[:, START:], padded[:, START:], jnp.concatenate(steps, axis=1)
        return apply(alone), ways, cache.state, other.state

    due, ways, state, other = all_ways(variables)
    for way in ways:
        np.testing.assert_allclose(way, due, rtol=1e-5, atol=1e-6)
    for one, same in zip(state, other, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-5, atol=1e-6)


def test_refusals():
    with pytest.raises(ConfigError, match="left to right; use it in a decoder"):
        RECORD.module(Execution(), causal=False)
    with pytest.raises(ConfigError, match=r"value_heads=3, key_heads=2.*multiple"):
        GatedDeltaConfig(key_heads=2, value_heads=3, key_dim=6, value_dim=8)
