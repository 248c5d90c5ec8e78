import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from flaxformer_lite.nn.positions.alibi import slopes
from flaxformer_lite.nn.positions.rounded_alibi import RoundedAlibi


def bias_of(k_positions, rows=(0,), heads=6, width=16):
    def compute(positions):
        q = jnp.ones((1, len(rows), heads, width))
        return RoundedAlibi().bias({}, q, jnp.asarray([rows]), positions, bidirectional=False)

    return np.asarray(jax.jit(compute)(jnp.asarray([k_positions])))


def test_products_are_those_of_bfloat16_scaled_like_the_dot_products():
    positions = np.array([0, 1, 255, 257, 300, 1999])
    rounded = slopes(6).astype(ml_dtypes.bfloat16)[:, None] * positions.astype(ml_dtypes.bfloat16)
    due = rounded.astype(np.float32) / 4  # the root of 16
    np.testing.assert_array_equal(bias_of(positions)[0, :, 0], due)


def test_every_query_adds_the_same_to_a_key_and_neighbours_fall_together():
    bias = bias_of([256, 257, 300], rows=(0, 300))
    np.testing.assert_array_equal(bias[:, :, 0], bias[:, :, 1])
    assert (bias[..., 0] == bias[..., 1]).all() and (bias[..., 0] < bias[..., 2]).all()
