"""Experts with limited room: against counting by hand, on a mesh, and in training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import Execution, MeshConfig
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.functions.routing import within_capacity
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh

CFG = CapacityMoeConfig(num_experts=4, capacity=2, mlp_dim=24, expert=MlpConfig(bias=True))
X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 16)), jnp.float32)


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_room_is_given_by_rank_of_choice_then_by_order(is_prioritized):
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.permutation(3)[:2] for _ in range(12)])
    keep = rng.random(12) < 0.8
    priority = rng.random(12).astype(np.float32)
    order = np.argsort(-priority) if is_prioritized else np.arange(12)
    taken = np.zeros(3, int)
    due = np.zeros((12, 2), bool)
    for rank in range(2):
        for token in order:
            if keep[token]:
                due[token, rank] = taken[chosen[token, rank]] < 3
                taken[chosen[token, rank]] += 1
    fits = within_capacity(
        jnp.asarray(chosen), 3, 3, keep_L=keep, priority_L=priority if is_prioritized else None
    )
    np.testing.assert_array_equal(fits, due)


def made(cfg=CFG, execution=Execution()):
    module = cfg.module(execution)
    params = jax.jit(module.init)(jax.random.key(0), X)["params"]
    return module, jax.tree.map(lambda x: x + 0.3, params)


def test_tokens_without_room_get_nothing_and_others_what_they_had():
    module, params = made()
    y = jax.jit(module.apply)({"params": params}, X)
    same = MoeConfig(
        num_experts=4, experts_per_token=1, normalize=False, mlp_dim=24, expert=CFG.expert
    )
    all_of_them = jax.jit(same.module(Execution()).apply)({"params": params}, X)
    chosen = jnp.argmax(X @ params["router"]["kernel"], axis=-1)
    for row, experts in enumerate(np.asarray(chosen)):
        for token, expert in enumerate(experts):
            has_room = (experts[:token] == expert).sum() < 2
            due = all_of_them[row, token] if has_room else jnp.zeros(16)
            np.testing.assert_allclose(y[row, token], due, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly  # of other experts on a mesh, test_moe.py
@pytest.mark.parametrize("group", ["row", "batch"])
def test_a_mesh_drops_the_same(group):
    cfg = dataclasses.replace(CFG, group=group, experts_per_token=2, renormalize=True)
    module, params = made(cfg)
    sharding = MeshSharding(build_mesh(MeshConfig(data=2, expert=2, context=2)))
    on_mesh = cfg.module(PlacedExecution(sharding=sharding))

    def gradient(module, params):
        return jax.value_and_grad(
            # outputs near 20 would leave the router's gradient to rounding
            lambda params: jnp.sum(jnp.sin(module.apply({"params": params}, X) / 16))
        )(params)

    one = jax.jit(lambda params: gradient(module, params))(params)
    many = jax.jit(lambda params: gradient(on_mesh, params))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), many, one)


def test_training_has_its_own_room_and_noise():
    cfg = dataclasses.replace(CFG, capacity=0, capacity_factor=1.0, eval_fraction=0.3)
    assert cfg.expert_capacity(20, training=True) == 5
    assert cfg.expert_capacity(20, training=False) == 6
    assert dataclasses.replace(cfg, eval_fraction=0.0).expert_capacity(20, training=False) == 10
    module, params = made(dataclasses.replace(cfg, jitter=0.5))
    run = jax.jit(lambda key: module.apply({"params": params}, X, rngs={"dropout": key}))
    assert not np.allclose(run(jax.random.key(0)), run(jax.random.key(1)))


@pytest.mark.nightly
@pytest.mark.parametrize("training", [True, False])
def test_no_expert_has_more_room_than_there_are_tokens(training):
    """A token chooses an expert once, so that a larger factor drops none either."""
    name = "capacity_factor" if training else "eval_capacity_factor"
    plain = dataclasses.replace(CFG, capacity=0, eval_fraction=0.0, jitter=0.0)
    outputs = []
    for factor in (float(CFG.num_experts), 1e12, 3e38):
        cfg = dataclasses.replace(plain, **{name: factor})
        assert cfg.expert_capacity(20, training=training) == 20
        module, params = made(cfg)
        rngs = {"dropout": jax.random.key(0)} if training else {}
        outputs.append(jax.jit(module.apply)({"params": params}, X, rngs=rngs))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
