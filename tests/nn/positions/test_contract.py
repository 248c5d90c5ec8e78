"""The contract of every file in positions/, for any of the hooks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import attend, registry
from flaxformer_lite.axes import AXES
from flaxformer_lite.config import from_config_dict, to_config_dict
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.embedding import positions_in_segments
from flaxformer_lite.nn.functions.rotary import rotate
from flaxformer_lite.nn.positions.encoding import Encoding

B = 2
T = 9
N = 4
H = 8
D = 32
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2], [5] * 9], np.int32)
SIZES = {"d_model": D, "num_heads": N, "head_dim": H, "max_length": 16}


@pytest.fixture(params=registry.available("positions"))
def encoding(request):
    return registry.resolve_class("positions", request.param)()


def tables(encoding):
    return {
        name: jnp.asarray(np.random.default_rng(i).standard_normal(table.shape, np.float32))
        for i, (name, table) in enumerate(encoding.tables(**SIZES).items())
    }


def embeddings(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(7).standard_normal((B, T, D)), dtype)


def layer(encoding, tables, x, positions, mask=None, rows=slice(None), bidirectional=False):
    """One attention over the embedded `x`, of `rows` to all columns; `rows` as in cached
    decoding."""
    x = encoding.embed(tables, x, positions)
    q = k = v = x.reshape(*x.shape[:2], N, H)
    phase = encoding.phase(positions, H)
    if phase is not None:
        q = k = rotate(k, phase)
    index = jnp.arange(x.shape[1])
    bias = encoding.attention_bias(
        tables, positions[:, rows], positions, bidirectional=bidirectional
    )
    return attend(q[:, rows], k, v, mask=mask, bias=bias, q_index=index[rows], k_index=index)


def test_positions_end_where_a_table_has_a_row_for_each(encoding):
    longer = SIZES | {"max_length": SIZES["max_length"] + 1}
    grows = encoding.tables(**SIZES) != encoding.tables(**longer)
    assert (encoding.span(SIZES["max_length"]) is not None) == grows


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_hooks_keep_shapes_and_dtypes(encoding, dtype):
    learned = tables(encoding)
    positions = jnp.arange(T)[None]
    q = jnp.ones((B, T, N, H), dtype)
    embedded = encoding.embed(learned, embeddings(dtype), positions)
    assert embedded.shape == (B, T, D) and embedded.dtype == dtype
    phase = encoding.phase(positions, H)
    if phase is not None:
        assert phase.sin_BTP.shape == phase.cos_BTP.shape and phase.sin_BTP.dtype == jnp.float32
        assert phase.sin_BTP.shape[:2] == (1, T) and 2 * phase.sin_BTP.shape[2] <= H
    for bidirectional in (False, True):
        bias = encoding.bias(learned, q, positions, positions, bidirectional=bidirectional)
        if bias is not None:
            assert bias.shape in ((1, N, T, T), (B, N, T, T)) and bias.dtype == jnp.float32
            assert jnp.isfinite(bias).all()
    assert (encoding.attention_bias(learned, positions, positions, bidirectional=True) is None) == (
        bias is None
    )


def test_fills_a_hook_or_none(encoding):
    filled = [
        hook
        for hook in ("embed", "phase", "bias")
        if getattr(type(encoding), hook) is not getattr(Encoding, hook)
    ]
    assert bool(filled) == (type(encoding).__name__ != "Nope")


def test_tables_name_their_axes(encoding):
    for table in encoding.tables(**SIZES).values():
        assert len(table.axes) == len(table.shape) and set(table.axes) <= set(AXES)
        assert table.init in ("normal", "zeros") or table.init > 0


@pytest.mark.nightly
def test_jit_equals_eager_and_gradients_are_finite(encoding):
    learned = tables(encoding)
    x = embeddings()
    positions = positions_in_segments(SEGMENTS)

    def loss(x, learned):
        return (layer(encoding, learned, x, positions, masks.causal()) ** 2).sum()

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, learned)
    np.testing.assert_allclose(value, loss(x, learned), rtol=1e-5)
    assert all(jnp.isfinite(g).all() and (g != 0).any() for g in jax.tree.leaves(grads))


def test_a_packed_document_is_what_it_is_alone(encoding):
    learned = tables(encoding)
    x = embeddings()
    mask = masks.causal() & masks.segments(SEGMENTS)
    packed = layer(encoding, learned, x, positions_in_segments(SEGMENTS), mask)
    for document in (slice(0, 4), slice(4, 9)):
        positions = jnp.arange(document.stop - document.start)[None]
        alone = layer(encoding, learned, x[:1, document], positions, masks.causal())
        np.testing.assert_allclose(packed[:1, document], alone, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_decoded_from_a_cache_is_what_it_is_in_the_whole(encoding, bidirectional):
    learned = tables(encoding)
    x = embeddings()
    positions = positions_in_segments(SEGMENTS)
    mask = masks.segments(SEGMENTS)
    mask = mask if bidirectional else mask & masks.causal()
    whole = layer(encoding, learned, x, positions, mask, bidirectional=bidirectional)
    for t in (0, 5):
        row = layer(encoding, learned, x, positions, mask, slice(t, t + 1), bidirectional)
        np.testing.assert_allclose(row[:, 0], whole[:, t], atol=1e-5)


def test_tells_positions_apart(encoding):
    """Reversing the text changes what the last row sees, unless there is no encoding at all."""
    learned = tables(encoding)
    positions = jnp.arange(T)[None]
    x = embeddings()
    swapped = x.at[:, :-1].set(x[:, :-1][:, ::-1])
    last = [layer(encoding, learned, y, positions)[:, -1] for y in (x, swapped)]
    assert np.allclose(*last, atol=1e-5) == (type(encoding).__name__ == "Nope")


def test_is_hashable_and_survives_its_config(encoding):
    options = to_config_dict(encoding)
    assert from_config_dict(type(encoding), options) == encoding
    assert hash(dataclasses.replace(encoding)) == hash(encoding)
