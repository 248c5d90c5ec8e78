import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.functions.splade import splade

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 4)), jnp.float32)
KERNEL = jnp.asarray(np.random.default_rng(1).normal(size=(11, 4)), jnp.float32)
BIAS = jnp.linspace(-1.0, 1.0, 11)
MASK = jnp.asarray([[1] * 7, [1] * 3 + [0] * 4])


def plain(x, strategy, activation):
    logits = jnp.einsum("BTD,VD->BTV", x, KERNEL, precision="highest")
    logits = logits + BIAS[None, None]
    weights = jnp.log1p(jax.nn.relu(logits))
    weights = jnp.log1p(weights) if activation == "log1p_relu" else weights
    weights = jnp.where(MASK[:, :, None] > 0, weights, 0)
    return weights.max(axis=1) if strategy == "max" else weights.sum(axis=1)


@pytest.mark.parametrize(("strategy", "activation"), [("max", "log1p_relu"), ("sum", "relu")])
def test_a_part_of_the_logits_at_a_time_gives_the_same_weights_and_gradient(strategy, activation):
    @jax.jit
    def both(x):
        def chunked(x):
            projection = DeferredLogits(x, KERNEL, BIAS)
            options = {"strategy": strategy, "activation": activation, "most_logits": 50}
            return splade(projection, MASK, **options)

        weight = jnp.arange(11.0)[None]
        return [
            (fn(x), jax.grad(lambda x, fn=fn: (fn(x) * weight).sum())(x))
            for fn in (chunked, lambda x: plain(x, strategy, activation))
        ]

    got, due = both(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, due)


def test_the_logits_of_all_tokens_never_exist_at_once():
    def loss(x):
        return splade(DeferredLogits(x, KERNEL, BIAS), MASK, most_logits=50).sum()

    whole = 2 * 7 * 11
    text = str(jax.make_jaxpr(jax.grad(loss))(X))
    assert "f32[2,7,11]" not in text and "f32[2,2,11]" in text and whole > 50


def test_what_is_no_way_to_pool_is_refused():
    with pytest.raises(ValueError, match="strategy='mean': must be one of max, sum"):
        splade(DeferredLogits(X, KERNEL), MASK, strategy="mean")
    with pytest.raises(ValueError, match="activation='gelu': must be one of relu"):
        splade(DeferredLogits(X, KERNEL), MASK, activation="gelu")
