"""Tables that grow: old tokens and short texts are read as before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.grow_tables import grow_positions, grow_vocabulary
from tests.marks import daily
from tests.models.tiny import built, inputs_of, logits_of, small

FAMILIES = [("gpt2", "lm"), ("bert", "masked_lm"), ("roberta", "masked_lm"), ("llama", "lm")]
FAMILIES += [("opt", "lm"), ("t5", "lm"), ("bart", "lm")]
# Every day tied and untied logits and those with a bias; positions with and without an offset.
VOCABULARIES = [("gpt2", "lm"), ("bert", "masked_lm"), ("llama", "lm"), ("bart", "lm")]
POSITIONS = [("gpt2", "lm"), ("roberta", "masked_lm"), ("t5", "lm")]
IDS = 2 + jnp.arange(12, dtype=jnp.int32)[None]  # 1 is RoBERTa's padding


@functools.cache
def made(family, head):
    return built(small(family, 1, head=head, vocab_size=64))


def logits(model, params, ids=IDS):
    return np.asarray(logits_of(model, params, **inputs_of(model.cfg, ids)))


@pytest.mark.parametrize(("family", "head"), daily(FAMILIES, VOCABULARIES))
def test_a_new_token_changes_no_old_one_and_is_the_mean_of_them(family, head):
    model, params = made(family, head)
    before = logits(model, params)
    grown, more = grow_vocabulary(model, params, 70)
    after = logits(grown, more)
    assert grown.cfg.vocab_size == 70 and model.cfg.vocab_size == 64
    np.testing.assert_allclose(after[..., :64], before, atol=1e-5)
    mean = before.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(after[..., 64:], np.repeat(mean, 6, -1), atol=1e-5)


def test_normal_rows_have_the_spread_of_the_others_and_follow_the_seed():
    model, params = made("gpt2", "lm")
    draw = [grow_vocabulary(model, params, 2064, new_tokens="normal", seed=s)[1] for s in (1, 1, 2)]
    tables = [np.asarray(one["token_embed"]["embedding"]) for one in draw]
    np.testing.assert_array_equal(tables[0], tables[1])
    assert (tables[0][64:] != tables[2][64:]).any()
    old = tables[0][:64]
    np.testing.assert_allclose(tables[0][64:].std(), old.std(), rtol=0.1)


@pytest.mark.parametrize(("family", "head"), daily(FAMILIES, POSITIONS))
def test_repeated_positions_read_short_texts_as_before_and_long_ones_at_all(family, head):
    model, params = made(family, head)
    grown, more = grow_positions(model, params, 40)
    np.testing.assert_array_equal(logits(grown, more), logits(model, params))
    long = jnp.tile(IDS, (1, 3))
    assert np.isfinite(logits(grown, more, long)).all()


def test_interpolated_positions_keep_the_first_and_the_last():
    model, params = made("bert", "masked_lm")
    _, more = grow_positions(model, params, 31, new_positions="interpolate")
    old = params["embed"]["position"]["position"]
    new = more["embed"]["position"]["position"]
    assert new.shape[0] == 31
    np.testing.assert_allclose(new[::2], old, atol=1e-6)
    np.testing.assert_allclose(new[1::2], (old[1:] + old[:-1]) / 2, atol=1e-6)


def test_rows_of_padding_stay_where_they_are():
    model, params = made("roberta", "masked_lm")
    _, more = grow_positions(model, params, 30)
    old = np.asarray(params["embed"]["position"]["position"])
    new = np.asarray(more["embed"]["position"]["position"])
    np.testing.assert_array_equal(new, np.concatenate([old, old[2:]]))


@pytest.mark.parametrize("size", [63, True, 70.0])
def test_a_size_that_is_smaller_or_no_number_is_refused(size):
    model, params = made("gpt2", "lm")
    with pytest.raises(ConfigError, match=r"vocab_size=.*at least the 64 of the weights"):
        grow_vocabulary(model, params, size)


def test_another_choice_is_refused():
    model, params = made("gpt2", "lm")
    with pytest.raises(ConfigError, match="new_tokens='zeros': must be 'mean' or 'normal'"):
        grow_vocabulary(model, params, 70, new_tokens="zeros")


def test_the_same_size_changes_and_says_nothing(caplog):
    model, params = made("gpt2", "lm")
    grown, same = grow_vocabulary(model, params, np.int64(64))
    assert grown.cfg == model.cfg and not caplog.records
    jax.tree.map(np.testing.assert_array_equal, same, params)
