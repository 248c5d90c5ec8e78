import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.positions.index import Index


def test_adds_the_number_of_the_position():
    x = jnp.ones((2, 3, 4))
    embedded = Index(unit=2.0).embed({}, x, jnp.asarray([[0, 1, 2], [5, 0, 1]]))
    np.testing.assert_array_equal(embedded[..., 0], [[1, 1.5, 2], [3.5, 1, 1.5]])
    np.testing.assert_array_equal(embedded, jnp.broadcast_to(embedded[..., :1], x.shape))


def test_unit_is_positive():
    with pytest.raises(ValueError, match=r"unit=0\.0"):
        Index(unit=0.0)
