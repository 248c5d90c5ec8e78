"""Documents and padding that a recurrent layer reads off a mask, also over slots of a cache; the
rest is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.documents import with_documents

IDS = jnp.asarray([[1, 1, 2, 0, 3], [0, 0, 1, 1, 1]], jnp.int32)
X = jnp.zeros((2, 5, 8))


def marks(mask, x=X, causal=True, **options):
    context = with_documents(Context(mask=mask, **options), x, causal=causal)
    return [
        None if x is None else np.asarray(x).astype(int).tolist()
        for x in (context.starts_BT, context.keep_BT)
    ]


def test_documents_and_padding():
    starts = [[1, 0, 1, 0, 1], [0, 0, 1, 0, 0]]
    keep = [[1, 1, 1, 0, 1], [0, 0, 1, 1, 1]]
    assert (
        marks(masks.causal() & masks.segments(IDS))
        == marks(masks.segments(IDS), causal=False)
        == [starts, keep]
    )
    assert marks(masks.padding(IDS)) == [None, keep]
    assert marks(masks.padding(jnp.asarray([[1, 0, 1, 1, 1]])) & masks.segments(IDS))[1] == [
        [1, 0, 1, 0, 1],
        [0, 0, 1, 1, 1],
    ]
    assert marks(None) == marks(masks.full()) == marks(masks.causal()) == [None, None]


@pytest.mark.parametrize("index", [2, jnp.int32(2)])
def test_a_chunk_begins_no_document_that_has_begun(index):
    read = jax.jit(
        lambda index: with_documents(
            Context(mask=masks.segments(IDS), index=index), X[:, :2], causal=True
        )
    )
    context = read(index)
    assert context.starts_BT.tolist() == [[True, False], [True, False]]
    assert read(jnp.int32(3)).starts_BT.tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    "mask",
    [
        masks.window(2),
        masks.segments(IDS, IDS),
    ],
)
def test_what_a_recurrence_cannot_follow(mask):
    with pytest.raises(ConfigError, match=r"prefix_mask, windows:.*recurrent"):
        marks(mask)


def test_an_encoder_cannot_follow_a_causal_mask():
    with pytest.raises(ConfigError, match="no prefix, window or array"):
        marks(masks.causal(), causal=False)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="has 5 columns for 4 keys"):
        marks(masks.padding(IDS), X[:, :4])
    with pytest.raises(ValueError, match="5 columns for a cache of 6 slots"):
        marks(masks.padding(IDS), jnp.zeros((2, 6, 8)), index=jnp.int32(0))
