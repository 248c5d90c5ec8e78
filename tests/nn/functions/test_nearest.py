"""Neighbors by cosine against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.nearest import nearest


def test_the_largest_cosines_in_their_order():
    draw = np.random.default_rng(0)
    table = draw.normal(size=(50, 7)) * draw.uniform(0.1, 9, (50, 1))
    queries = draw.normal(size=(3, 7))
    table[4] = 0
    cosines, rows = jax.jit(nearest, static_argnames="k")(
        jnp.asarray(table), jnp.asarray(queries), k=50
    )
    for query, own, order in zip(queries, np.asarray(cosines), np.asarray(rows), strict=True):
        expected = (
            table @ query / np.maximum(np.linalg.norm(table, axis=1) * np.linalg.norm(query), 1e-9)
        )
        np.testing.assert_allclose(own, expected[order], atol=1e-5)
        assert sorted(order) == list(range(50)) and (np.diff(own) <= 0).all()
        assert own[order == 4] == 0


def test_one_vector_and_half_precision():
    table = jnp.eye(4, dtype=jnp.bfloat16)
    cosines, rows = nearest(table, table[2], 1)
    assert (cosines.dtype, rows.tolist(), cosines.tolist()) == (jnp.float32, [2], [1.0])


@pytest.mark.parametrize(("width", "k", "says"), [(5, 1, "same width"), (4, 5, "k=5.*the 4 rows")])
def test_misfits_are_refused(width, k, says):
    with pytest.raises(ValueError, match=says):
        nearest(jnp.eye(4), jnp.ones(width), k)
