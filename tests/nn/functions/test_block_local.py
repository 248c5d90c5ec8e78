"""Attention in blocks equals dense attention with the mask of its neighbors, also in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import block_local, masks
from flaxformer_lite.nn.functions.block_local import Shared, WeightDropout, attend_blocks

B = 2
T = 11
N = 4
K = 2
H = 4
S = 3  # keys that all blocks read
BLOCK = 4
RADIUS = 2
IDS = jnp.array([[1] * 5 + [2] * 4 + [0] * 2, [3] * 11])
SEEN = jnp.arange(B * T * S).reshape(B, T, S) % 3 != 0


def arrays():
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = ((B, T, N, H), (B, T, K, H), (B, T, K, H), (B, S, K, H), (B, S, K, H))
    drawn = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    return (*drawn, jax.random.normal(keys[5], (N, 1 + 2 * RADIUS)))


def in_blocks(q, k, v, more_k, more_v, table, dropout=None):
    ahead = np.arange(3 * BLOCK)[None] - BLOCK - np.arange(BLOCK)[:, None]
    bias = table[:, np.clip(ahead + RADIUS, 0, 2 * RADIUS)]
    shared = Shared(more_k, more_v, SEEN, lambda rows: (jnp.ones((1, 1, 1, 1)), rows))
    return attend_blocks(
        q,
        k,
        v,
        IDS,
        IDS,
        block=BLOCK,
        radius=RADIUS,
        block_bias=bias,
        scale=0.3,
        softcap=2.0,
        shared=shared,
        dropout=dropout,
    )


def densely(q, k, v, more_k, more_v, table):
    mask = (masks.window(RADIUS, RADIUS) & masks.segments(IDS)).dense(T)
    ahead = np.arange(T)[None] - np.arange(T)[:, None]
    bias = table[:, np.clip(ahead + RADIUS, 0, 2 * RADIUS)]
    bias = jnp.concatenate([bias, jnp.ones((N, T, S))], axis=-1)[None]
    args = Arguments(mask=jnp.concatenate([mask, SEEN], axis=-1), bias=bias, scale=0.3, softcap=2.0)
    k = jnp.concatenate([k, more_k], axis=1)
    v = jnp.concatenate([v, more_v], axis=1)
    return dense.attend(q, k, v, args)


def with_gradient(attend):
    weights = jax.random.normal(jax.random.key(1), (B, T, N, H))
    loss = lambda *given: ((out := attend(*given)) * weights).sum() + (out**2).sum()  # noqa: E731
    return jax.jit(lambda given: (attend(*given), jax.grad(loss, range(6))(*given)))(arrays())


@pytest.mark.nightly
@pytest.mark.parametrize("most_scores", [2**24, BLOCK * N * (3 * BLOCK + S)])
def test_blocks_equal_dense_attention(monkeypatch, most_scores):
    """All rows at the same time, and in three parts that the backward pass computes again."""
    monkeypatch.setattr(block_local, "MOST_SCORES", most_scores)
    for one, due in zip(
        *map(jax.tree.leaves, map(with_gradient, (in_blocks, densely))), strict=True
    ):
        np.testing.assert_allclose(one, due, rtol=1e-5, atol=2e-6)


def test_dropout_keeps_the_mean():
    q, k, v, more_k, more_v, table = arrays()
    ones = jnp.ones_like(v), more_k, jnp.ones_like(more_v), table
    drop = jax.jit(lambda key: in_blocks(q, k, *ones, WeightDropout(key, 0.3)))
    sums = drop(jax.random.key(2))[..., 0]  # of what is left of the weights of a row
    seen = np.asarray(IDS)[..., None] != 0
    assert abs(sums.mean(where=seen) - 1) < 0.1 < sums.std(where=seen)
