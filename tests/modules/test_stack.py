"""Layers of one look are traced once, and still are layers of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.models import gpt2
from flaxformer_lite.modules.context import Context
from flaxformer_lite.modules.mlp import FeedForward
from flaxformer_lite.modules.stack import Stack
from flaxformer_lite.training import compiles

INPUTS = jnp.zeros((2, 4, 64)), jnp.zeros((2, 4), jnp.int32), Context()


def build(layers, **options):
    sizes = {"d_model": 64, "num_heads": 2, "mlp_dim": 8, "decoder_layers": layers, "norm_at": ()}
    model = Stack(gpt2.config("tiny", **sizes, **options), layers, causal=True)
    return model, model.init(jax.random.key(0), *INPUTS)


@pytest.mark.parametrize("scan", [False, True])
def test_every_layer_drops_at_random_for_itself(scan):
    model, variables = build(2, dropout=0.5, dropout_at=("branch",), scan=scan)

    def only_the_last_bias(path, x):
        return jnp.full_like(x, jax.tree_util.keystr(path).endswith("['mlp']['down']['bias']"))

    variables = jax.tree.map_with_path(only_the_last_bias, variables)
    y, _ = model.apply(variables, *INPUTS, rngs={"dropout": jax.random.key(1)})
    assert set(np.unique(y)) == {0, 2, 4}, "each layer adds 0 or 2: never 2 in all, if both drew the same"


@pytest.mark.parametrize("options", [{}, {"remat": "full"}])
def test_layers_are_traced_once_for_each_look_and_each_call(monkeypatch, options):
    model, variables = build(4, windows=(2, 0), **options)
    seen, call = [], FeedForward.__call__
    monkeypatch.setattr(FeedForward, "__call__", lambda self, x: seen.append(x) or call(self, x))
    for number in (1, 2):  # a second call may be traced for another mesh, which jit does not look at
        jax.eval_shape(model.apply, variables, *INPUTS)
        assert len(seen) == 2 * number


def test_without_jit_around_it_no_layer_is_compiled():
    model, variables = build(3)
    model.apply(variables, *INPUTS)
    before = compiles.total()
    model.apply(variables, *INPUTS)
    assert compiles.total() == before


def test_values_inside_the_layers_can_be_caught():
    model, variables = build(2)
    _, caught = model.apply(variables, *INPUTS, capture_intermediates=True, mutable=["intermediates"])
    assert {"layer_0", "layer_1"} <= caught["intermediates"].keys()
