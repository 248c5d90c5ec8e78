import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.embedding import positions_from_mask, positions_in_segments


def test_positions_restart_in_each_segment():
    segment_ids = np.array(
        [[1, 1, 1, 2, 2, 0, 0], [3, 1, 1, 1, 2, 2, 2], [0, 0, 5, 5, 5, 5, 5]], np.int32
    )
    expected = np.zeros_like(segment_ids)
    for b, row in enumerate(segment_ids):
        for t in range(1, len(row)):
            expected[b, t] = expected[b, t - 1] + 1 if row[t] == row[t - 1] else 0
    positions = jax.jit(positions_in_segments)(segment_ids)
    np.testing.assert_array_equal(positions, expected)
    assert positions.dtype == jnp.int32


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float32])
def test_positions_count_real_tokens_only(dtype):
    mask = np.array([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 1]]).astype(dtype)
    positions = positions_from_mask(jnp.asarray(mask))
    np.testing.assert_array_equal(
        positions, [[0, 1, 2, 2], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 2]]
    )


@pytest.mark.parametrize("function", [positions_in_segments, positions_from_mask])
def test_a_batch_axis_is_needed(function):
    with pytest.raises(ValueError, match="batch, length"):
        function(jnp.ones(4, jnp.int32))
