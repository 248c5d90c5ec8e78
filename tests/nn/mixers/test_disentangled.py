"""Disentangled attention: two ways to compute position scores, buckets, documents, refusals."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, Execution, LayerConfig, StackConfig
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.mixers.convolution import ConvolutionConfig
from flaxformer_lite.nn.mixers.disentangled import (
    DisentangledConfig,
    PositionScores,
    rows_of_distance,
)
from flaxformer_lite.nn.modules.stack import Stack

HEADS = AttentionConfig(num_heads=2, bias=("query", "key", "value", "out"), max_length=32)
MIXER = DisentangledConfig(buckets=8, share_key=True, norm_table=True, attention=HEADS)
B = 2
T = 12
D = 16


def stack_of(mixer, attention="dense", extra_branch=None):
    layer = LayerConfig(
        mixer=mixer, feed_forward=MlpConfig(), norm_at=("out",), extra_branch=extra_branch
    )
    record = StackConfig(num_layers=2, pattern=(layer,))
    return Stack(record, Execution(attention=attention, dropout=0.0))


@pytest.mark.nightly
def test_blocks_compute_the_scores_and_gradients_of_the_whole():
    """Blockwise attention gathers position scores, dense attention shifts them."""
    x = jax.random.normal(jax.random.key(0), (B, T, D))
    weights = jax.random.normal(jax.random.key(1), (B, T, D))
    dense = stack_of(MIXER)
    params = dense.init(jax.random.key(2), x)

    def both(params):
        def loss(params, attention):
            return (stack_of(MIXER, attention).apply(params, x) * weights).sum()

        return [jax.value_and_grad(loss)(params, name) for name in ("dense", "blockwise")]

    (whole, of_whole), (blocks, of_blocks) = jax.jit(both)(params)
    np.testing.assert_allclose(whole, blocks, rtol=1e-5)
    chex.assert_trees_all_close(of_whole, of_blocks, rtol=0, atol=0.0001)
    assert np.abs(of_whole["params"]["position"]["relative"]).max() > 1e-3


@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("c2p", "p2c")])
def test_scores_are_those_of_the_paper_one_pair_at_a_time(terms):
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=(1, size, 2, 4)).astype(np.float32) for size in (5, 7))
    record = DisentangledConfig(terms=terms, max_distance=3, attention=HEADS)
    table = {term: rng.normal(size=(6, 2, 4)).astype(np.float32) for term in terms}
    scores = PositionScores(
        jnp.asarray(k),
        table.get("c2p"),
        table.get("p2c"),
        jnp.arange(5, dtype=jnp.int32)[None],
        jnp.arange(7, dtype=jnp.int32)[None],
        record,
        0.5,
    )
    due = np.zeros((1, 2, 5, 7))
    for i in range(5):
        for j in range(7):
            row = min(max(i - j, -3), 2) + 3  # equation 3
            for head in range(2):
                if "c2p" in table:
                    due[0, head, i, j] += 0.5 * q[0, i, head] @ table["c2p"][row, head]
                if "p2c" in table:
                    due[0, head, i, j] += 0.5 * k[0, j, head] @ table["p2c"][row, head]
    for gathers in (True, False):
        whole = scores.of_all_rows(jnp.asarray(q), gathers=gathers)
        np.testing.assert_allclose(whole, due, rtol=1e-5, atol=1e-5)
    gathered = scores(jnp.asarray(q), jnp.arange(5), jnp.arange(7))
    np.testing.assert_allclose(gathered, due, rtol=1e-5, atol=1e-5)
    behind = dataclasses.replace(scores, k_places_BS=scores.k_places_BS - 1)  # each distance grows
    gathered = behind(jnp.asarray(q), jnp.arange(5), jnp.arange(7))
    same_keys = scores(jnp.asarray(np.roll(q, 1, axis=1)), jnp.arange(5), jnp.arange(7))
    np.testing.assert_allclose(gathered[:, :, :-1], same_keys[:, :, 1:], rtol=1e-5, atol=1e-5)


def test_rows_of_the_published_buckets():
    """As transformers' make_log_bucket_position has them, for 256 buckets up to 512."""
    distance = np.array([-3000, -512, -511, -300, -129, -128, -1, 0, 1, 128, 129, 200, 400, 511])
    rows = rows_of_distance(distance, 256, 256, 512).tolist()
    assert rows == [0, 0, 1, 49, 127, 128, 255, 256, 257, 384, 385, 425, 489, 511]
    assert rows_of_distance(np.array([512, 3000]), 256, 256, 512).tolist() == [511, 511]


@pytest.mark.nightly
@pytest.mark.parametrize("attention", ["dense", "blockwise"])
def test_a_row_of_padding_attends_to_all_columns_alike(attention):
    """As in transformers: its output is the projected mean of the values."""
    mixer = MIXER.module(Execution(attention=attention, dropout=0.0), causal=False)
    x = jax.random.normal(jax.random.key(0), (1, T, D))
    params = mixer.init(jax.random.key(1), x)
    keep = jnp.arange(T)[None] < 9
    out = mixer.apply(params, x, mask=masks.padding(keep))
    packed = mixer.apply(params, x, mask=masks.segments(keep.astype(jnp.int32)))
    np.testing.assert_allclose(out[:, :9], packed[:, :9], rtol=0, atol=1e-5)
    weights = jax.tree.map(np.asarray, params["params"])
    values = np.einsum("BTD,DNH->BTNH", x, weights["value"]["kernel"]) + weights["value"]["bias"]
    due = np.einsum("NH,NHD->D", values.mean(axis=(0, 1)), weights["out"]["kernel"])
    due += weights["out"]["bias"]
    np.testing.assert_allclose(out[0, 9:], [due] * 3, rtol=0, atol=1e-5)


@pytest.mark.nightly
def test_documents_of_a_row_do_not_see_each_other_with_a_convolution_beside():
    """Neither an earlier document nor padding changes a document."""
    stack = stack_of(MIXER, extra_branch=ConvolutionConfig())
    x = jax.random.normal(jax.random.key(0), (1, T, D))
    params = jax.jit(stack.init)(jax.random.key(1), x)
    apply = jax.jit(lambda x, ids: stack.apply(params, x, mask=masks.segments(ids)))
    ids = jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]])
    packed = apply(x, ids)
    alone = apply(jnp.roll(x, -5, axis=1).at[:, 4:].set(7.0), jnp.asarray([[1] * 4 + [0] * 8]))
    np.testing.assert_allclose(packed[:, 5:9], alone[:, :4], rtol=0, atol=1e-5)
    assert not packed[:, 9:].any(), "padding behind a convolution is zero"
    assert not np.allclose(stack.apply(params, x)[:, 5:9], packed[:, 5:9], atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(terms=()), r"mixer\.terms=\(\): needs c2p, p2c or both.*leave out mixer\.name"),
        (
            dict(buckets=64),
            r"mixer\.buckets=64, mixer\.max_distance=32: .* exceeds half.*0 buckets",
        ),
    ],
)
def test_records_that_compute_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        DisentangledConfig(attention=HEADS, **settings)


def test_what_a_model_cannot_combine_is_refused():
    with pytest.raises(ConfigError, match=r"model\.windows: .* leave out windows"):
        DisentangledConfig().for_model(dataclasses.replace(HEADS, window=3))
    with pytest.raises(ConfigError, match=r"mixer\.name='convolution': .* encoder"):
        ConvolutionConfig().module(Execution(), causal=True)
    with pytest.raises(ConfigError, match=r"mixer\.width=4: must be odd.*set 5"):
        ConvolutionConfig(width=4)
