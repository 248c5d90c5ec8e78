"""Masks made for other shapes are refused, where reading past their end would repeat their last
column."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.attentions.dispatch import attention
from flaxformer_lite.nn.functions import masks

B = 2
T = 4
S = 6
Q = jnp.ones((B, T, 2, 8))
K = jnp.ones((B, S, 2, 8))
KEEP = np.array([[1, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]], bool)
IDS = np.array([[1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 3, 3]], np.int32)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            masks.padding(KEEP[:, :5]),
            r"padding\(keep\) has 5 columns for 6 keys:.*key",
        ),
        (
            masks.causal() & ~masks.prefix(KEEP[:, :1]),
            r"prefix\(in_prefix\) has 1 columns for 6 keys",
        ),
        (
            masks.full() | masks.padding(np.ones((3, S), bool)),
            r"padding\(keep\) has 3.*batch.*2",
        ),
        (masks.segments(IDS[:, :T]), r"segments\(q\) without k has 4 columns for 6 keys"),
        (masks.segments(IDS, IDS), r"segments\(q\) has 6 rows for 4 queries"),
        (masks.segments(IDS[:, :T], IDS[:, :5]), r"segments\(k\) has 5 columns for 6 keys"),
        (masks.dense(np.ones((1, 3, S), bool)), r"dense\(mask\) has 3 rows for 4 queries"),
        (
            KEEP,
            r"mask has shape \(2, 6\): must be \[1 or 2, 4, 6\];.*a padding.*padding\(x\)",
        ),
        (np.ones((B, T, 5), bool), r"mask has shape \(2, 4, 5\)"),
        (masks.causal, r"call it: mask=causal\(\)"),
    ],
)
def test_a_mask_for_other_lengths_is_refused(mask, message):
    for implementation in ("dense", "blockwise", "chunked_causal"):
        with pytest.raises((ValueError, TypeError), match=message):
            jax.eval_shape(
                lambda name=implementation: attention(Q, K, K, mask=mask, implementation=name)
            )


@pytest.mark.parametrize(
    "mask",
    [
        masks.padding(KEEP[:1]),
        masks.segments(IDS[:, :T], IDS),
        masks.dense(np.ones((B, 1, S), bool)),
        np.ones((T, S), bool),
        np.ones((1, T, S), bool),
        np.ones((B, 1, T, S), bool),
        np.ones((1, T, S), bool).tolist(),
    ],
)
def test_documented_shapes_are_taken(mask):
    assert jax.eval_shape(lambda: attention(Q, K, K, mask=mask)).shape == Q.shape


def test_a_square_array_that_may_be_padding_is_refused():
    with pytest.raises(
        ValueError,
        match=r"mask has shape \(2, 2\): is also \[batch, source\]",
    ):
        attention(Q[:, :2], K[:, :2], K[:, :2], mask=np.ones((2, 2), bool))


def test_a_mask_over_slots_may_be_longer_than_the_keys():
    mask = masks.padding(np.ones((B, 9), bool))
    slots = jnp.arange(3, 9)
    out = attention(Q, K, K, mask=mask, q_index=jnp.arange(5, 9), k_index=slots)
    np.testing.assert_allclose(out, jnp.ones_like(Q), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "options", "says"),
    [
        (jnp.int32, {}, "q is int32: attention is of floats"),
        (jnp.float32, {"dropout_rate": 1.5}, r"dropout_rate=1\.5: must be"),
    ],
)
def test_what_would_be_wrong_numbers_is_refused(dtype, options, says):
    x = jnp.ones((1, 2, 1, 4), dtype)
    with pytest.raises(ValueError, match=says):
        attention(x, x, x, **options)
