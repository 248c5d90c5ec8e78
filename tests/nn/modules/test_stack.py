"""A trainer's layers of one look are traced once, and still are layers of their own; to others
nothing is changed."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.functions.sharding import place_execution, sharding_of
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.stack import Stack
from flaxformer_lite.sharding.activations import MeshSharding
from tests.marks import daily

INPUTS = jnp.zeros((2, 4, 64)), jnp.zeros((2, 4), jnp.int32), Context()


def build(layers, **options):
    sizes = {"d_model": 64, "num_heads": 2, "mlp_dim": 8, "decoder_layers": layers, "norm_at": ()}
    cfg = gpt2.config("tiny", **sizes, **options)
    model = Stack(build_layers.stack(cfg, "decoder"), cfg.execution, causal=True, embedded=True)
    return model, model.init(jax.random.key(0), *INPUTS)


def trained(model):
    """The model as a trainer runs it."""
    placed = MeshSharding(sharding.build_mesh(MeshConfig(data=1)))
    return model.clone(execution=place_execution(model.execution, placed, None))


@pytest.mark.parametrize(
    "options",
    daily([{}, {"scan": True}, {"remat": "full"}, {"share_layers": (0, 0)}], [{"scan": True}]),
)
def test_every_layer_drops_at_random_for_itself(options):
    model, variables = build(2, dropout=0.5, dropout_at=("branch",), **options)

    def only_the_last_bias(path, x):
        return jnp.full_like(x, jax.tree_util.keystr(path).endswith("['mlp']['down']['bias']"))

    variables = jax.tree.map_with_path(only_the_last_bias, variables)
    model = trained(model)
    y = jax.jit(lambda v, *x: model.apply(v, *x, rngs={"dropout": jax.random.key(1)}))(
        variables, *INPUTS
    )
    assert set(np.unique(y)) == {
        0,
        2,
        4,
    }, "each layer adds 0 or 2: never 2 in all, if both drew the same"


@pytest.mark.parametrize("options", daily([{}, {"remat": "full"}], [{}]))
def test_a_trainer_traces_layers_of_one_look_once(options):
    model, variables = build(4, windows=(2, 0), **options)
    seen = []

    def note(call, args, kwargs, context):
        seen.append(context.module.path)
        return call(*args, **kwargs)

    def apply(model, *args):
        with nn.intercept_methods(
            lambda f, a, k, c: note(f, a, k, c) if c.module.name == "mlp" else f(*a, **k)
        ):
            variables, x_BTD, *rest = args
            # as an embedding leaves it
            x_BTD = sharding_of(model.execution).constrain(x_BTD, "BTD")
            return model.apply(variables, x_BTD, *rest)

    jax.eval_shape(functools.partial(apply, trained(model)), variables, *INPUTS)
    assert len(seen) == 2
    seen.clear()
    jax.eval_shape(functools.partial(apply, model), variables, *INPUTS)
    assert seen == [(f"layer_{i}", "mlp") for i in range(4)]


def test_it_computes_the_same():
    model, variables = build(3)
    x_BTD = jax.random.normal(jax.random.key(1), INPUTS[0].shape)

    def loss(model, variables, x_BTD):
        return jnp.square(model.apply(variables, x_BTD, *INPUTS[1:])).mean()

    once, each = (
        jax.jit(jax.grad(functools.partial(loss, m)))(variables, x_BTD)
        for m in (trained(model), model)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), once, each)


@pytest.mark.nightly
def test_gradients_without_jit_compile_nothing_twice():
    model, variables = build(2)
    gradient = jax.grad(lambda v: model.apply(v, *INPUTS).sum())
    gradient(variables)
    before = recompiles.total()
    gradient(variables)
    assert recompiles.total() == before
