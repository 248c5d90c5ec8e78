import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.norms import layer_norm, rms_norm
from flaxformer_lite.nn.positions.index import Index


def test_adds_the_number_of_the_position():
    x = jnp.ones((2, 3, 4))
    embedded = Index(unit=2.0).embed({}, x, jnp.asarray([[0, 1, 2], [5, 0, 1]]))
    np.testing.assert_array_equal(embedded[..., 0], [[1, 1.5, 2], [3.5, 1, 1.5]])
    np.testing.assert_array_equal(embedded, jnp.broadcast_to(embedded[..., :1], x.shape))


def test_unit_is_positive():
    with pytest.raises(ValueError, match=r"unit=0\.0"):
        Index(unit=0.0)


def test_layer_norm_takes_it_away_and_rms_norm_does_not():
    x = jnp.linspace(-1.0, 1.0, 8).reshape(1, 2, 4) ** 3
    ones = jnp.ones(4)
    embedded = Index().embed({}, x, jnp.asarray([[100, 200]]))
    np.testing.assert_allclose(
        layer_norm(embedded, ones, eps=1e-6), layer_norm(x, ones, eps=1e-6), atol=1e-5
    )
    assert jnp.abs(rms_norm(embedded, ones, eps=1e-6) - rms_norm(x, ones, eps=1e-6)).max() > 0.1
