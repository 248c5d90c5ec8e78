import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import optimizer
from tests.marks import daily

STEPS = 100


def rates(steps=STEPS, **fields):
    cfg = OptimizerConfig(
        **{"learning_rate": 2.0, "warmup_steps": 10, "final_fraction": 0.1, **fields}
    )
    return np.asarray(optimizer.schedule(cfg, steps)(np.arange(steps)))


@pytest.mark.parametrize("name", ["cosine", "linear", "rsqrt", "constant", "wsd"])
def test_warms_up_linearly_to_the_peak(name):
    got = rates(schedule=name)
    np.testing.assert_allclose(got[:10], 0.2 * np.arange(1, 11), rtol=1e-6)
    assert got.max() == got[9] == 2.0


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_ends_at_the_final_fraction(name):
    np.testing.assert_allclose(rates(schedule=name)[-1], 0.2, rtol=1e-6)


def test_shapes_between():
    t = (np.arange(10, STEPS) - 10) / (STEPS - 1 - 10)
    np.testing.assert_allclose(
        rates(schedule="cosine")[10:], 0.2 + 1.8 * (1 + np.cos(np.pi * t)) / 2, rtol=1e-5
    )
    np.testing.assert_allclose(rates(schedule="linear")[10:], 2 - 1.8 * t, rtol=1e-5)
    np.testing.assert_allclose(
        rates(schedule="rsqrt")[10:], 2 * np.sqrt(10 / np.arange(11, STEPS + 1)), rtol=1e-6
    )
    wsd = rates(schedule="wsd", decay_steps=20)
    assert (wsd[10:80] == 2).all() and (np.diff(wsd[80:]) < 0).all()


def test_no_warmup_starts_at_the_peak():
    assert rates(schedule="cosine", warmup_steps=0)[0] == 2.0


def test_a_share_of_the_steps_warms_up_unless_a_number_is_given():
    shared = rates(schedule="cosine", warmup_steps=0, warmup_share=0.1)
    np.testing.assert_array_equal(shared, rates(schedule="cosine", warmup_steps=STEPS // 10))
    given = rates(schedule="cosine", warmup_steps=5, warmup_share=0.1)
    np.testing.assert_array_equal(given, rates(schedule="cosine", warmup_steps=5))


def ones(*shape):
    return np.ones(shape, np.float32)


PARAMS = {
    "token_embed": {"embedding": ones(8, 4)},
    "embed": {"position": {"table": ones(8, 4)}, "norm": {"scale": ones(4), "bias": ones(4)}},
    "layers": {  # scanned: biases are matrices by rank
        "attention": {
            "query": {"kernel": ones(2, 4, 2, 2), "bias": ones(2, 2, 2)},
            "out": {"kernel": ones(2, 2, 2, 4)},
        },
        "mlp": {"up": {"kernel": ones(2, 4, 8)}},
        "norm": {"scale": ones(2, 4)},
    },
}


def test_decay_is_on_weights_and_token_tables_only():
    mask = optimizer.decay_mask(PARAMS)
    decayed = [jax.tree_util.keystr(k) for k, on in jax.tree_util.tree_leaves_with_path(mask) if on]
    assert len(decayed) == 4 and all(
        path.endswith(("['kernel']", "['embedding']")) for path in decayed
    )


@pytest.mark.parametrize("name", registry.available("positions"))
def test_decay_spares_the_tables_of_every_position_encoding(name):
    encoding = registry.resolve_class("positions", name)()
    model = gpt2.Model(gpt2.config("tiny", vocab_size=64, decoder_layers=1, position=encoding))
    params = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    )
    paths = {
        path_of(keys): on
        for keys, on in jax.tree_util.tree_leaves_with_path(optimizer.decay_mask(params))
    }
    assert paths["token_embed/embedding"] and paths["decoder/layer_0/mlp/up/kernel"]
    assert not [
        path
        for path, on in paths.items()
        if on and not path.endswith(("/kernel", "token_embed/embedding"))
    ]


def updates_of(tx, grads, params=PARAMS):
    """The first updates, by one program."""
    return jax.device_get(
        jax.jit(lambda grads, params: tx.update(grads, tx.init(params), params)[0])(grads, params)
    )


def rule(name, **fields):
    """An optimizer of a constant rate of one, without decay and clipping unless asked for."""
    plain = {"learning_rate": 1.0, "schedule": "constant", "warmup_steps": 0}
    plain |= {"weight_decay": 0.0, "clip_norm": 0.0}
    return optimizer.build(OptimizerConfig(name=name, **plain | fields), 10)


@pytest.mark.parametrize("name", daily(registry.available("optimizers"), ("adamw", "muon")))
def test_zero_gradient_shrinks_by_rate_times_decay(name):
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    updates = updates_of(rule(name, learning_rate=0.5, weight_decay=0.2), zeros)
    np.testing.assert_allclose(updates["layers"]["mlp"]["up"]["kernel"], -0.1, rtol=2e-6)
    assert (updates["layers"]["norm"]["scale"] == 0).all()
    assert (updates["embed"]["position"]["table"] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_norm_is_of_all_leaves_in_float32(dtype):
    draw = np.random.default_rng(0)
    shapes = ((256, 64), (12, 64), (768,), ())
    tree = [np.asarray(draw.standard_normal(shape), jnp.dtype(dtype)) for shape in shapes]
    norm = jax.jit(optimizer.global_norm)(tree)
    numbers = np.concatenate([np.asarray(x, np.float64).ravel() for x in tree])
    np.testing.assert_allclose(norm, np.linalg.norm(numbers), rtol=1e-6)
    assert norm.dtype == jnp.float32


def test_clip_bounds_the_global_norm():
    grads = jax.tree.map(lambda p: 3 * p, PARAMS)
    updates = updates_of(rule("sgd", clip_norm=0.5), grads)
    norm = np.sqrt(sum(np.square(u).sum() for u in jax.tree.leaves(updates)))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-6)


def test_clipping_comes_before_the_direction():
    """Adam's first update does not depend on the gradient's size; clipped afterwards it would have
    a norm of 1e-3."""
    updates = updates_of(rule("adamw", clip_norm=1e-3, eps=1e-12), PARAMS)
    np.testing.assert_allclose(updates["layers"]["mlp"]["up"]["kernel"], -1.0, rtol=1e-4)


def test_eps_reaches_adam():
    small = jax.tree.map(lambda p: 1e-3 * p, PARAMS)
    updates = updates_of(rule("adamw", eps=1.0), small)
    np.testing.assert_allclose(updates["token_embed"]["embedding"], -1e-3, rtol=2e-3)


def test_adafactor_moves_in_proportion_to_the_parameter():
    ten = jax.tree.map(lambda p: 10.0 * p, PARAMS)
    one, many = (
        updates_of(rule("adafactor"), PARAMS, params)["layers"]["mlp"]["up"]["kernel"]
        for params in (PARAMS, ten)
    )
    np.testing.assert_allclose(many, 10 * one, rtol=1e-5)


def test_lion_by_hand():
    """Algorithm 2 with b1 = 0.9, b2 = 0.99: m = 0.01 after a gradient of 1, then 0.9 m - 0.1 / 2 is
    negative."""
    tx = rule("lion", b1=0.9, b2=0.99)
    params = {"kernel": ones()}
    update = jax.jit(tx.update)
    first, opt_state = update({"kernel": ones()}, jax.jit(tx.init)(params), params)
    second, _ = update({"kernel": np.float32(-0.5)}, opt_state, params)
    assert (first["kernel"], second["kernel"]) == (-1, 1)


def test_muon_turns_each_layers_projection_into_a_scaled_orthogonal_matrix():
    draw = np.random.default_rng(0)
    grads = jax.tree.map(lambda p: draw.standard_normal(p.shape, np.float32), PARAMS)
    updates = updates_of(rule("muon"), grads)
    attention = updates["layers"]["attention"]
    up = updates["layers"]["mlp"]["up"]["kernel"]
    for matrix in (
        *attention["query"]["kernel"].reshape(2, 4, 4),
        *attention["out"]["kernel"].reshape(2, 4, 4),
        *up,
    ):
        singular = np.linalg.svd(np.asarray(matrix), compute_uv=False) / (
            0.2 * np.sqrt(max(matrix.shape))
        )
        # five Newton-Schulz steps are approximate
        assert singular.min() > 0.3 and singular.max() < 1.3, singular
