"""Block-sparse attention equals dense attention that sees the same pairs, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.mixers.block_sparse import BlockSparseConfig, block_sparse
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets

BLOCK = 2
R = 1
T = 15
D = 16
KEPT = np.arange(T) < np.array([[15], [11]])
RECORD = BlockSparseConfig(
    block=BLOCK, random_blocks=R, attention=AttentionConfig(num_heads=4, num_kv_heads=2)
)


def densely(q, k, v):
    """The first block counts twice, except in rows of the first and last block."""
    blocks = np.arange(T) // BLOCK
    ends = (blocks == 0) | (blocks == blocks[-1])
    near = np.abs(blocks[:, None] - blocks[None]) <= 1
    seen = (near | ends[None] | ends[:, None])[None] & KEPT[:, None]
    again = ~ends[:, None] & (blocks == 0)[None]
    bias = jnp.asarray(np.log1p(R * again), jnp.float32)[None, None]
    return dense.attend(q, k, v, Arguments(mask=jnp.asarray(seen), bias=bias, scale=0.3))


def sparsely(q, k, v):
    return block_sparse(q, k, v, jnp.asarray(KEPT), block=BLOCK, random_blocks=R, scale=0.3)


def test_it_equals_dense_attention_with_its_pairs():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((2, T, 4, 4), (2, T, 2, 4), (2, T, 2, 4))
    given = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    kept = jnp.asarray(KEPT)[..., None, None]

    def with_gradient(attend):
        loss = lambda *given: (attend(*given) ** 2).sum()  # noqa: E731
        return attend(*given), jax.grad(loss, range(3))(*given)

    def without_padding(*given):
        return jnp.where(kept, densely(*given), 0)

    both = jax.jit(lambda: (with_gradient(sparsely), with_gradient(without_padding)))()
    for one, due in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(one, due, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "causal, mask, message",
    [
        (True, None, "15 tokens.*both ways beyond 14.*plain attention"),
        (False, masks.segments(np.ones((1, T), int)), "segment_ids.*own row"),
        (False, masks.window(2), "no causal mask, window"),
    ],
)
def test_refusals_of_long_rows(causal, mask, message):
    module = RECORD.module(Execution(), causal=causal)
    with pytest.raises(ConfigError, match=message):
        jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, T, D)), mask=mask)


def test_a_bias_is_refused():
    with pytest.raises(ConfigError, match=r"position=T5Buckets.*Learned\(\) or Rope\(\)"):
        RECORD.for_model(AttentionConfig(num_heads=4, position=T5Buckets()))
