import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.analysis import flops
from flaxformer_lite.nn.attentions import chunked_causal, dense
from flaxformer_lite.nn.functions import masks
from tests.nn.attentions.cases import MASKS, N, T, by_keywords, heads

NIGHTLY = pytest.mark.nightly
CHUNKED = by_keywords(chunked_causal.attend)
DENSE = by_keywords(dense.attend)


@functools.partial(jax.jit, static_argnames=("attend", "blocks"))
def value_and_gradient(arrays, bias, mask, *, attend, **options):
    def function(arrays, bias):
        return (attend(*arrays, mask=mask, bias=bias, **options) ** 2).sum()

    return jax.value_and_grad(function, (0, 1))(arrays, bias)


FORMS = [masks.causal(), masks.window(2), ~masks.causal(), MASKS["packed"]]
# Each mask in three blocks; nightly also in more blocks than there are tokens.
MEETING = [
    pytest.param(blocks, mask, marks=[] if blocks == 3 else [NIGHTLY])
    for blocks in (2, 3, 4, 100)
    for mask in FORMS
]


@pytest.mark.parametrize(("blocks", "mask"), MEETING)
def test_any_number_of_blocks_equals_the_whole_in_value_and_gradient(blocks, mask):
    arrays = heads(2)[:3]
    bias = jax.random.normal(jax.random.key(3), (1, N, T, T))
    cut = value_and_gradient(arrays, bias, mask, attend=CHUNKED, blocks=blocks)
    drawn = masks.dense(mask.dense(T))  # so that the whole is compiled but once
    whole = value_and_gradient(arrays, bias, drawn, attend=DENSE)
    for mine, plain in zip(*map(jax.tree.leaves, (cut, whole)), strict=True):
        np.testing.assert_allclose(mine, plain, atol=1e-5, rtol=1e-5)


def test_a_causal_call_in_four_blocks_does_five_eighths_of_the_work():
    q = jax.ShapeDtypeStruct((1, 64, 2, 8), jnp.float32)
    whole, cut = (
        flops.count(lambda q, a=a: a(q, q, q, mask=masks.causal()), q) for a in (DENSE, CHUNKED)
    )
    assert cut * 8 == whole * 5
    assert flops.count(lambda q: CHUNKED(q, q, q, mask=masks.full()), q) == whole


def test_a_model_takes_it_for_long_rows_and_a_mask_that_was_drawn_keeps_its_reach():
    sizes = dict(vocab_size=64, d_model=16, num_heads=2, mlp_dim=16, decoder_layers=1)
    count = {}
    for attention in ("auto", "dense"):
        model = build_model("gpt2", "tiny", attention=attention, **sizes)
        ids = jnp.zeros((1, 256), jnp.int32)
        params = jax.eval_shape(model.init, jax.random.key(0), ids)
        count[attention] = flops.count(
            lambda p, model=model, ids=ids: model.apply(p, ids).logits, params
        )
    assert count["dense"] - count["auto"] == 3 / 8 * (2 * 2 * 256 * 256 * 16)


@pytest.mark.parametrize(
    ("mask", "reach"),
    [(masks.causal(), (0, 4)), (masks.window(1, 2), (1, 6)), (masks.full(), (0, 9))],
)
def test_a_drawn_mask_is_the_mask(mask, reach):
    mask = mask & masks.segments(jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0, 0]]))
    drawn = masks.evaluate_once(mask, 9)
    np.testing.assert_array_equal(drawn.dense(9), mask.dense(9))
    assert drawn.column_bounds(2, 4, 9) == mask.column_bounds(2, 4, 9) == reach


def test_no_block_at_all_is_refused():
    q, k, v, _ = heads(2)
    with pytest.raises(ValueError, match=r"blocks=0: must be at least 1\."):
        CHUNKED(q, k, v, blocks=0)
