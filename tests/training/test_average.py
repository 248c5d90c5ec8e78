import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training import optimizer
from flaxformer_lite.training.average import evaluated_params
from flaxformer_lite.training.state import TrainState

DECAY = 0.9


def trained(steps, dtype="float32", **fields):
    """A state after some steps of descent on one number, and the numbers after each step."""
    cfg = OptimizerConfig(
        name="sgd", learning_rate=0.1, schedule="constant", warmup_steps=0, weight_decay=0, **fields
    )
    tx = optimizer.build(cfg, steps)
    params = {"w": {"kernel": jnp.full((2,), 8, dtype)}, "still": {"bias": jnp.ones((2,), dtype)}}
    opt_state = tx.init(params)
    seen = []
    for _ in range(steps):
        updates, opt_state = tx.update(jax.tree.map(jnp.ones_like, params), opt_state, params)
        with jax.numpy_dtype_promotion("standard"):
            params = optax.apply_updates(params, updates)
        seen.append(np.asarray(params["w"]["kernel"], np.float64))
    return TrainState(jnp.int32(steps), params, opt_state), seen


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_is_the_mean_of_the_weights_by_age(steps):
    """np.average is the independent implementation; the first weights, 8, have no part in it."""
    state, seen = trained(steps, ema=DECAY)
    due = np.average(seen, axis=0, weights=DECAY ** np.arange(steps)[::-1])
    np.testing.assert_allclose(evaluated_params(state)["w"]["kernel"], due, rtol=1e-6)


def test_training_goes_on_without_it():
    _, seen = trained(5, ema=DECAY)
    plain, due = trained(5)
    np.testing.assert_array_equal(seen, due)
    assert evaluated_params(plain) is plain.params


def test_it_is_float32_where_the_weights_are_not_and_evaluated_in_their_dtype():
    state, seen = trained(7, dtype="bfloat16", ema=0.999)
    assert state.opt_state.ema["w"]["kernel"].dtype == jnp.float32
    np.testing.assert_allclose(
        state.opt_state.ema["w"]["kernel"], np.average(seen, axis=0), rtol=1e-3
    )
    assert evaluated_params(state)["w"]["kernel"].dtype == jnp.bfloat16


def test_frozen_weights_have_no_second_copy():
    state, _ = trained(3, ema=DECAY, freeze=("still",))
    assert list(jax.tree.leaves(state.opt_state.ema)) == [state.opt_state.ema["w"]["kernel"]]
    np.testing.assert_array_equal(evaluated_params(state)["still"]["bias"], 1)
