import jax.numpy as jnp
import numpy as np

from flaxformer_lite.objectives.sums import LossSums, ratio, weight_sums


def test_terms_are_each_over_their_own_weight():
    loss = {"weights": jnp.float32(6), "pairs": jnp.float32(1)}
    sums = LossSums(loss, {"weights": jnp.float32(3), "pairs": jnp.float32(2)}, {})
    assert float(sums.mean()) == 6 / 3 + 1 / 2
    assert float(sums.mean({"weights": jnp.float32(12), "pairs": jnp.float32(4)})) == 6 / 12 + 1 / 4


def test_weights_are_the_floating_targets():
    targets = {
        "labels": jnp.ones((2, 3), jnp.int32),
        "weights": jnp.full((2, 3), 0.5),
        "flag": jnp.ones(2, bool),
    }
    assert {k: float(v) for k, v in weight_sums(targets).items()} == {"weights": 3.0}


def test_ratio_of_nothing():
    np.testing.assert_array_equal(ratio(jnp.array([4.0, 0.0]), jnp.array([2.0, 0.0])), [2.0, 0.0])
