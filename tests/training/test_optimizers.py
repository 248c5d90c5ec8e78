"""The files of training/optimizers, each by what it owes, and optimizers of one's own."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.models import gpt2, qwen3_next
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.training import optimizer
from flaxformer_lite.training.average import evaluated_params
from flaxformer_lite.training.optimizers import hidden_matrices
from flaxformer_lite.training.state import TrainState

PLAIN = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 0.0}
NAMES = registry.available("optimizers")


def quadratic(params):
    return sum(jnp.sum(jnp.square(x - 1)) for x in jax.tree.leaves(params))


def matrices(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def trained(tx, params, steps):
    gradient = jax.grad(quadratic)

    @jax.jit
    def run(params):
        def body(state, _):
            params, opt_state = state
            updates, opt_state = tx.update(gradient(params), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        return jax.lax.scan(body, (params, tx.init(params)), length=steps)[0]

    return run(params)


@pytest.mark.parametrize("name", NAMES)
def test_each_descends(name):
    params = {
        "layer_0": {"up": {"kernel": jnp.asarray(matrices(4, 8))}, "norm": {"scale": jnp.zeros(4)}}
    }
    cfg = OptimizerConfig(name=name, learning_rate=0.05, **PLAIN)
    last, opt_state = trained(optimizer.build(cfg, 40), params, 40)
    evaluated = evaluated_params(TrainState(jnp.int32(40), last, opt_state))
    assert quadratic(evaluated) < 0.9 * quadratic(params)


def kernels(cfg, model):
    shapes = jax.eval_shape(
        lambda: model.Model(cfg).init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    )
    paths = jax.tree_util.tree_leaves_with_path(shapes)
    named = {hidden_matrices.path_of(keys): leaf for keys, leaf in paths}
    return {path: leaf for path, leaf in named.items() if hidden_matrices.PROJECTION.search(path)}


def fans(shapes):
    """(matrices, inputs, outputs) of each kernel, by the end of its path."""
    numbers = hidden_matrices.dimension_numbers(shapes)
    found = {}
    for path, leaf in shapes.items():
        fan_in, fan_out = hidden_matrices.fans(leaf, numbers[path])
        found[path.split("/", 3)[-1]] = (leaf.size // (fan_in * fan_out), fan_in, fan_out)
    return found


def test_experts_of_scanned_layers_are_matrices_of_their_own():
    sizes = {"d_model": 16, "num_heads": 2, "head_dim": 4, "mlp_dim": 24, "decoder_layers": 3}
    moe = MoeConfig(num_experts=5)
    cfg = gpt2.config("tiny", vocab_size=32, scan=True, feed_forward=moe, **sizes)
    assert fans(kernels(cfg, gpt2)) == {
        "attention/query/kernel": (3, 16, 8),
        "attention/key/kernel": (3, 16, 8),
        "attention/value/kernel": (3, 16, 8),
        "attention/out/kernel": (3, 8, 16),
        "mlp/experts/up/kernel": (15, 16, 24),
        "mlp/experts/down/kernel": (15, 24, 16),
    }


def test_gates_of_heads_and_mixers_without_heads_have_their_own_axes():
    shapes = kernels(qwen3_next.config("tiny", vocab_size=32), qwen3_next)
    width = 0
    for path, (_, fan_in, fan_out) in fans(shapes).items():
        width = width or fan_in
        if not path.startswith("mlp"):
            assert width in (fan_in, fan_out), path
    assert any("attention/gate" in path for path in shapes)


def test_muons_spectral_norm_follows_the_ratio_of_outputs_to_inputs():
    up = matrices(16, 64)
    gradients = {"layer_0": {"up": {"kernel": up}, "down": {"kernel": up.T}}}
    sizes = {}
    for name in ("muon", "muon_spectral"):
        tx = optimizer.build(OptimizerConfig(name=name, learning_rate=1.0, **PLAIN), 1)
        updates, _ = jax.jit(lambda g, tx=tx: tx.update(g, tx.init(g), g))(gradients)
        updates = updates["layer_0"]
        sizes[name] = [np.linalg.norm(updates[m]["kernel"], 2) for m in ("up", "down")]
    # five Newton-Schulz steps leave singular values between 0.7 and 1.2
    np.testing.assert_allclose(sizes["muon"], 0.2 * 8, rtol=0.3)
    np.testing.assert_allclose(sizes["muon_spectral"], [20 * 2, 20], rtol=0.3)


def test_schedule_free_is_optax():
    """optax computes the average from the two other sequences, and we keep it."""
    params = {"kernel": jnp.asarray(matrices(3, 4)), "bias": jnp.zeros(4)}
    cfg = OptimizerConfig(
        name="schedule_free", learning_rate=0.05, **PLAIN | {"weight_decay": 0.1, "eps": 1e-6}
    )
    last, opt_state = trained(optimizer.build(cfg, 20), params, 20)
    base = optax.chain(
        optax.scale_by_adam(0.0, cfg.b2, cfg.eps),
        optax.add_decayed_weights(0.1, {"kernel": True, "bias": False}),
        optax.scale_by_learning_rate(0.05),
    )
    with jax.numpy_dtype_promotion("standard"):
        due, due_state = trained(contrib.schedule_free(base, 0.05, b1=cfg.b1), params, 20)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), last, due)
    evaluated = evaluated_params(TrainState(jnp.int32(20), last, opt_state))
    due_average = contrib.schedule_free_eval_params(due_state, due)
    chex.assert_trees_all_close(evaluated, due_average, rtol=0.0001, atol=1e-06)
    assert np.abs(evaluated["kernel"] - last["kernel"]).max() > 1e-3


def test_schedule_free_keeps_frozen_weights_and_copies_none():
    params = {"up": {"kernel": jnp.asarray(matrices(3, 4))}, "still": {"bias": jnp.full(4, 0.3)}}
    cfg = OptimizerConfig(name="schedule_free", freeze=("still",), **PLAIN)
    last, opt_state = trained(optimizer.build(cfg, 3), params, 3)
    np.testing.assert_array_equal(last["still"]["bias"], params["still"]["bias"])
    assert [x.shape for x in jax.tree.leaves(opt_state.ema)] == [(3, 4)]


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"schedule": "cosine"}, {}, r"schedule='cosine'.*set optimizer.schedule=constant"),
        ({"ema": 0.9}, {}, r"ema=0.9.*set optimizer.ema=0"),
        ({"b1": 0.0}, {}, r"b1=0.*set optimizer.b1=0.9"),
        ({}, {"skip_spikes": 6.0}, r"skip_spikes=6.*set train.skip_spikes=0"),
    ],
)
def test_what_schedule_free_cannot_average_is_refused(fields, options, message):
    cfg = OptimizerConfig(**{"name": "schedule_free", "schedule": "constant"} | fields)
    with pytest.raises(ConfigError, match=message):
        optimizer.build(cfg, 10, **options)


MINE = """
import optax

WIDTH_POWERS = ((r"kernel$", -0.5),)


def make(cfg):
    return optax.scale(2 * cfg.b1)


def bare(cfg):
    return optax.identity()
"""


def test_an_optimizer_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_optimizer_of_test.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    cfg = OptimizerConfig(name="my_optimizer_of_test:make", learning_rate=0.5, **PLAIN)
    params = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
    tx = optimizer.build(cfg, 1, width=4.0)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.45)
    np.testing.assert_allclose(updates["bias"], -0.9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adam", r"optimizers: no 'adam'; did you mean 'adamw'"),
        ("flaxformer_lite.training.step:make", r"has no 'make'"),
    ],
)
def test_what_is_no_optimizer_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(OptimizerConfig(), name=name)
