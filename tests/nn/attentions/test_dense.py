import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.functions import kernels
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
