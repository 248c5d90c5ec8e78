import math

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_the_formula_of_the_paper(layout):
    width = 6
    positions = [0, 7, 300, 4095]
    embedded = Sinusoidal(layout=layout).embed(
        {}, jnp.zeros((1, 4, width)), jnp.asarray([positions])
    )
    for t, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
            assert float(embedded[0, t, sine]) == pytest.approx(math.sin(angle), abs=3e-7)
            assert float(embedded[0, t, cosine]) == pytest.approx(math.cos(angle), abs=3e-7)


def test_the_table_of_fairseq():
    """As its `get_embedding` builds it: rates from 1 to 1 / 10000, zeros for the padding."""
    rates = np.exp(np.arange(4) * -(math.log(10000) / 3))
    angles = np.arange(6)[:, None] * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    table[1] = 0
    encoding = Sinusoidal(layout="halves", inclusive=True, zero_at=1)
    embedded = encoding.embed({}, jnp.zeros((1, 6, 8)), jnp.arange(6)[None])
    np.testing.assert_allclose(embedded[0], table, atol=3e-7)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"layout='stacked': no 'stacked';.*choose.*interleaved"):
        Sinusoidal(layout="stacked")
    with pytest.raises(ValueError, match=r"d_model=7.*even width; try 8"):
        Sinusoidal().tables(d_model=7, num_heads=1, head_dim=7, max_length=4)
