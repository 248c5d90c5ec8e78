import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.attentions.dense import weights
from flaxformer_lite.nn.positions.shaw import Shaw

B = 2
T = 6
N = 3
H = 4
K = 2


def test_equation_5_of_the_paper():
    q, k = jax.random.normal(jax.random.key(0), (2, B, T, N, H))
    table = jax.random.normal(jax.random.key(1), (2 * K + 1, H))
    positions = jnp.arange(T)[None]
    bias = Shaw(max_distance=K).attention_bias(
        {"key": table}, positions, positions, bidirectional=True
    )
    logits = np.zeros((B, N, T, T))
    for b, n, i, j in np.ndindex(B, N, T, T):
        relative = table[min(max(j - i, -K), K) + K]
        logits[b, n, i, j] = np.dot(q[b, i, n], k[b, j, n] + relative) / np.sqrt(H)
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights(q, k, k, Arguments(bias=bias)), expected, atol=1e-5)


def test_a_table_a_layer():
    assert Shaw.per_layer
    table = Shaw(max_distance=K).tables(d_model=12, num_heads=N, head_dim=H, max_length=9)["key"]
    assert table.shape == (2 * K + 1, H) and table.axes == "RH"


def test_max_distance_is_positive():
    with pytest.raises(ValueError, match="max_distance=0"):
        Shaw(max_distance=0)
