"""Local attention with sums of tokens: packed documents are as alone, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.nn.positions.shaw import Shaw
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets

ATTENTION = AttentionConfig(num_heads=4, position=T5Buckets())
RECORD = LocalGlobalConfig(radius=3, global_block=4, attention=ATTENTION)
LENGTHS = (9, 3, 8)
D = 16


def test_packed_documents_are_as_alone():
    """One with a token behind its full sums, one too short for any."""
    module = RECORD.module(Execution(), causal=False)
    parts = [jax.random.normal(jax.random.key(n), (1, n, D)) for n in LENGTHS]
    row = jnp.pad(jnp.concatenate(parts, axis=1), ((0, 0), (0, 2), (0, 0)))
    ids = np.repeat([1, 2, 1, 0], [*LENGTHS, 2])[None]
    variables = jax.jit(module.init)(jax.random.key(0), row)
    norm = variables["params"]["global_norm"]
    norm["scale"] = norm["scale"] * 0.7
    apply = jax.jit(lambda row, ids: module.apply(variables, row, mask=masks.segments(ids)))
    packed = apply(row, ids)
    start = 0
    for part in parts:
        length = part.shape[1]
        behind = ((0, 0), (0, row.shape[1] - length))
        alone = apply(jnp.pad(part, (*behind, (0, 0))), np.pad(np.ones((1, length), int), behind))
        found = packed[:, start : start + length]
        np.testing.assert_allclose(found, alone[:, :length], rtol=1e-5, atol=1e-6)
        start += length


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RECORD.for_model(AttentionConfig(num_heads=4, window=5)), "windows.*window=0"),
        (lambda: RECORD.for_model(AttentionConfig(num_heads=4, position=Shaw())), "T5Buckets"),
        (lambda: RECORD.for_model(AttentionConfig(num_heads=4, position=Rope())), "global_block=0"),
        (
            lambda: RECORD.module(Execution(), causal=False).init(
                jax.random.key(0), jnp.ones((1, 8, D)), mask=masks.causal()
            ),
            "no causal mask",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
