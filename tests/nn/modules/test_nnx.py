"""Models in NNX: what linen computes, NNX's own training, and the parameters back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flaxformer_lite import ConfigError, Einsum, LoraConfig, build_model, from_nnx, to_nnx

IDS = jnp.array([[5, 3, 8, 2, 7, 1]])
SIZES = {"vocab_size": 40, "d_model": 16, "num_heads": 2, "mlp_dim": 32}


def made(**overrides):
    model = build_model("gpt2", "tiny", **SIZES, **overrides)
    return model, jax.jit(model.init)(jax.random.key(0), IDS)["params"]


@pytest.fixture(scope="module")
def gpt2():
    return made(decoder_layers=1, dropout=0.5)


def loss_of(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], IDS[:, 1:]).mean()


def loss(module):
    return loss_of(module(IDS).logits)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_logits_are_those_of_linen_and_the_parameters_come_back(gpt2):
    model, params = gpt2
    module = to_nnx(model, params)
    logits = nnx.jit(lambda module: module(IDS).logits)(module)
    assert_same(logits, jax.jit(lambda params: model.apply({"params": params}, IDS).logits)(params))
    assert from_nnx(module)[0] is model
    assert_same(from_nnx(module)[1], params)
    same = from_nnx(to_nnx(model, params))[1]
    # not even a copy
    assert all(a is b for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(params), strict=True))


def test_gradients_and_a_train_step_are_those_of_linen(gpt2):
    model, params = gpt2
    module = to_nnx(model, params)
    rule = optax.sgd(0.5, momentum=0.9)
    optimizer = nnx.Optimizer(module, rule, wrt=nnx.Param)

    @jax.jit
    def linen_step(params):
        grads = jax.grad(lambda params: loss_of(model.apply({"params": params}, IDS).logits))(
            params
        )
        return grads, optax.apply_updates(params, rule.update(grads, rule.init(params), params)[0])

    @nnx.jit
    def step(module, optimizer):
        grads = nnx.grad(loss)(module)
        optimizer.update(module, grads)
        return grads

    grads, moved = linen_step(params)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(close, nnx.to_pure_dict(step(module, optimizer)), grads)
    jax.tree.map(close, from_nnx(module)[1], moved)
    assert_same(params, gpt2[1])  # the step replaces arrays, it does not write in them


def test_dropout_is_on_between_train_and_eval_also_inside_another_module(gpt2):
    model, params = gpt2

    class Outer(nnx.Module):
        def __init__(self):
            self.inner = to_nnx(model, params, rngs=nnx.Rngs(1))

        def __call__(self, **options):
            return self.inner(IDS, **options).logits

    outer = Outer()
    run = nnx.jit(lambda outer, **options: outer(**options))
    plain = run(outer)
    outer.train()
    first = run(outer)
    second = run(outer)
    outer.eval()
    assert jnp.abs(first - plain).max() > 0.01 < jnp.abs(first - second).max()
    assert_same(run(outer), plain)
    key = jax.random.key(3)
    dropped = run(outer, rngs=key)
    assert jnp.abs(dropped - plain).max() > 0.01
    assert_same(dropped, run(outer, rngs=key))


def test_methods_and_modules_of_ones_own(gpt2):
    module = to_nnx(*gpt2)
    assert jax.eval_shape(lambda: module.decode(IDS)[0]).shape == (1, 6, 16)
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing
    layer = Einsum("BTD,DF->BTF", {"D": 3, "F": 4})
    x = jnp.ones((1, 2, 3))
    params = layer.init(jax.random.key(0), x)["params"]
    assert_same(
        nnx.jit(lambda module: module(x))(to_nnx(layer, params)), layer.apply({"params": params}, x)
    )
    bridged = nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x)
    assert_same(layer.apply({"params": from_nnx(bridged)[1]}, x), bridged(x))


@pytest.mark.nightly
def test_factors_of_an_adapter_train_alone():
    model, params = made(decoder_layers=1, adapter=LoraConfig(rank=2, targets=("query",)))
    module = to_nnx(model, params)
    factors = lambda path, _: path[-1] in ("lora_a", "lora_b")  # noqa: E731
    optimizer = nnx.Optimizer(module, optax.sgd(1.0), wrt=factors)
    optimizer.update(module, nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, factors)))(module))
    moved = jax.tree_util.tree_map_with_path(
        lambda _, a, b: bool((a != b).any()), from_nnx(module)[1], params
    )
    # a's is 0
    assert {path[-1].key for path, has in jax.tree_util.tree_leaves_with_path(moved) if has} == {
        "lora_b"
    }


@pytest.mark.parametrize("params", [None, {}, {"params": {"kernel": 1}}, [1]])
def test_what_are_no_parameters_is_refused(gpt2, params):
    with pytest.raises(ConfigError, match=r'params:.*dict.*; pass variables\["params"\]'):
        to_nnx(gpt2[0], params)


def test_training_without_rngs_and_a_module_that_is_not_ours_are_refused(gpt2):
    module = to_nnx(*gpt2)
    module.train()
    with pytest.raises(ConfigError, match="dropout needs rngs, as in to_nnx"):
        module(IDS)
    with pytest.raises(ConfigError, match="from_nnx of Linear: holds no linen model"):
        from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
