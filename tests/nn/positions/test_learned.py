import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.positions.learned import Learned

SIZES = {"d_model": 4, "num_heads": 1, "head_dim": 4, "max_length": 5}


@pytest.mark.parametrize("offset", [0, 2])
def test_adds_rows_of_the_table(offset):
    encoding = Learned(offset=offset)
    shape = encoding.tables(**SIZES)["position"].shape
    assert shape == (5 + offset, 4)
    table = jax.random.normal(jax.random.key(0), shape)
    x = jnp.ones((2, 3, 4))
    positions = np.array([[0, 1, 2], [4, 0, 3]])
    embedded = encoding.embed({"position": table}, x, jnp.asarray(positions))
    np.testing.assert_allclose(embedded, 1 + table[positions + offset])


def test_beyond_the_table_is_not_a_number():
    embedded = Learned().embed(
        {"position": jnp.ones((5, 4))}, jnp.ones((1, 2, 4)), jnp.asarray([[4, 5]])
    )
    assert jnp.isfinite(embedded[0, 0]).all() and jnp.isnan(embedded[0, 1]).all()


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"6.*position.*max_length=5"):
        Learned(offset=2).embed(
            {"position": jnp.ones((7, 4))}, jnp.ones((1, 6, 4)), jnp.arange(6)[None]
        )
    with pytest.raises(ValueError, match="offset=-1"):
        Learned(offset=-1)
