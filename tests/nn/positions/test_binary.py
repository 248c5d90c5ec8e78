import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.positions.binary import Binary


@pytest.mark.parametrize("width", [3, 40])
def test_features_are_the_bits(width):
    positions = [0, 1, 5, 6, 2**20 + 3]
    embedded = Binary().embed({}, jnp.zeros((1, 5, width)), jnp.asarray([positions]))
    expected = [[int(bit) for bit in f"{p:0{width}b}"[::-1][:width]] for p in positions]
    np.testing.assert_array_equal(embedded[0], expected)
