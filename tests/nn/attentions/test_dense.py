import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.functions import kernels, masks
from tests.nn.attentions.cases import MASKS, B, N, T, by_keywords, heads

attend = by_keywords(dense.attend)
weights_of = by_keywords(dense.weights)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_weights_are_those_the_output_is_made_with(kv_heads):
    q, k, v, _ = heads(kv_heads)
    weights = weights_of(q, k, v, mask=MASKS["packed"], softcap=3.0)
    assert weights.shape == (B, N, T, T) and weights.dtype == jnp.float32
    out = attend(q, k, v, mask=MASKS["packed"], softcap=3.0)
    np.testing.assert_allclose(kernels.pool(weights, v), out, atol=1e-6)


def test_rows_of_weights_sum_to_one_or_zero_and_obey_the_mask():
    q, k, v, _ = heads(2, jnp.bfloat16)
    mask = MASKS["packed"]
    weights = weights_of(q, k, v, mask=mask)
    visible = mask.dense(T)
    sees = jnp.broadcast_to(visible.any(axis=-1)[:, None], (B, N, T))
    np.testing.assert_allclose(weights.sum(axis=-1), sees, atol=1e-6)
    assert (jnp.where(visible[:, None], 0, weights) == 0).all()


def test_one_visible_column_takes_all():
    q, k, v, _ = heads(4)
    np.testing.assert_allclose(attend(q, k, v, mask=masks.window(0)), v, rtol=1e-6)
