"""Taps read and replace what any linen module returns, by the names of its parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite import Attention, AttentionConfig
from flaxformer_lite.nn.modules import interceptors

X = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 8)), jnp.float32)


def test_attention_alone():
    layer = Attention(AttentionConfig(num_heads=2))
    variables = layer.init(jax.random.key(0), X)
    y, values, state = interceptors.apply(
        layer, variables, interceptors.Taps(lambda name: name == "weights", {}), X
    )
    np.testing.assert_array_equal(y, layer.apply(variables, X))
    assert (
        list(values) == ["weights"]
        and values["weights"].shape == (1, 2, 3, 3)
        and set(state) == {interceptors.VALUES}
    )
    assert list(interceptors.found_by(layer, X)) == [
        "query",
        "key",
        "value",
        "logits",
        "weights",
        "heads",
        "out",
    ]


class Twice(nn.Module):
    """Calls one layer twice, which has a method named as that of attention, and sows."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Embed(5, 8, name="table")
        dense = nn.Dense(8, name="dense")
        self.sow("losses", "loss", dense(x).sum())
        return layer.attend(dense(dense(x))), layer(jnp.zeros((1,), jnp.int32))


def test_a_module_of_anyones():
    variables = {"params": Twice().init(jax.random.key(0), X)["params"]}
    tap = interceptors.Taps(lambda name: name.startswith("dense"), {"dense:1": 1.0})
    _, values, state = interceptors.apply(Twice(), variables, tap, X, mutable=["losses"])
    assert list(values) == ["dense", "dense:1", "dense:2"] and list(tap.found) == [*values, "table"]
    np.testing.assert_array_equal(values["dense:1"], np.ones((1, 3, 8)))
    np.testing.assert_allclose(state["losses"]["loss"][0], values["dense"].sum(), rtol=1e-5)
    kernel = variables["params"]["dense"]["kernel"]
    bias = variables["params"]["dense"]["bias"]
    np.testing.assert_allclose(
        values["dense:2"], np.ones((1, 3, 8)) @ np.asarray(kernel) + np.asarray(bias), rtol=1e-5
    )
