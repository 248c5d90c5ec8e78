"""Attention to latent vectors: what its cache holds, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.mixers.latent_attention import LatentAttentionConfig
from flaxformer_lite.nn.positions.alibi import Alibi
from flaxformer_lite.nn.positions.rope import Rope

CFG = LatentAttentionConfig(
    kv_rank=10,
    q_rank=0,
    content_dim=6,
    rotary_dim=4,
    value_dim=5,
    attention=AttentionConfig(num_heads=7, position=Rope(layout="interleaved"), window=3),
)
X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6, 16)), jnp.float32)


def decoded(execution, params=None):
    """Returns y of all tokens, y token by token, and the jaxpr of a step."""
    module = CFG.module(execution, causal=True)
    params = params or jax.jit(module.init)(jax.random.key(0), X)
    params = jax.tree.map(lambda x: x + 0.1, params)
    cache = CFG.init_cache(2, 6, 16, jnp.float32)

    def step(cache, x_BD):
        y_BTD, cache = module.apply(params, x_BD[:, None], cache=cache)
        return cache, y_BTD[:, 0]

    first, cache = jax.jit(module.apply)(params, X[:, :2], cache=cache)
    _, rest = jax.jit(lambda cache: jax.lax.scan(step, cache, jnp.swapaxes(X[:, 2:], 0, 1)))(cache)
    jaxpr = str(jax.make_jaxpr(step)(cache, X[:, 0]))
    return module.apply(params, X), jnp.concatenate([first, jnp.swapaxes(rest, 0, 1)], 1), jaxpr


@pytest.mark.nightly
def test_a_step_makes_no_keys_of_heads():
    """The cache holds what they are made of, here in a window of three slots."""
    whole, stepwise, jaxpr = decoded(Execution())
    np.testing.assert_allclose(stepwise, whole, atol=1e-5)
    cache = CFG.init_cache(2, 6, 16, jnp.float32)
    assert cache.k_BKSH.shape == (2, 1, 3, 4) and cache.v_BKSH.shape == (2, 1, 3, 10)
    assert "2,3,7,6]" not in jaxpr and "2,3,7,5]" not in jaxpr


@pytest.mark.nightly
def test_adapted_keys_are_made_of_the_cache():
    whole, stepwise, jaxpr = decoded(
        PlacedExecution(adapter=LoraConfig(targets=("value",), rank=2))
    )
    np.testing.assert_allclose(stepwise, whole, atol=1e-5)
    assert "2,3,7,5]" in jaxpr


def test_what_one_latent_vector_cannot_do_is_refused():
    for changes, named in (
        ({"position": Alibi()}, "position"),
        ({"num_kv_heads": 1}, "num_kv_heads"),
        ({"softcap": 3.0}, "attention_softcap"),
    ):
        standard = dataclasses.replace(CFG.attention, **changes)
        with pytest.raises(ConfigError, match=f"{named}, in a layer with.*latent vector"):
            CFG.for_model(standard)
