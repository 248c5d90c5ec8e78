import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.positions.alibi import Alibi, slopes


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (16, [n / 2 for n in range(1, 17)]),
    ],
)
def test_slopes_of_the_paper(heads, exponents):
    np.testing.assert_allclose(slopes(heads), [2.0**-e for e in exponents])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_penalty_is_slope_times_distance(bidirectional):
    q_positions = np.array([[3, 4], [0, 1]])
    k_positions = np.array([[0, 2, 4], [0, 5, 1]])
    q = jnp.ones((2, 2, 6, 4))
    bias = Alibi().bias(
        {}, q, jnp.asarray(q_positions), jnp.asarray(k_positions), bidirectional=bidirectional
    )
    for b, n, t, s in np.ndindex(2, 6, 2, 3):
        expected = -slopes(6)[n] * abs(q_positions[b, t] - k_positions[b, s])
        assert float(bias[b, n, t, s]) == pytest.approx(expected)


def test_max_bias():
    np.testing.assert_allclose(slopes(4, 4.0), [0.5, 0.25, 0.125, 0.0625])
