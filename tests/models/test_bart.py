"""BART's ways of making a decoder's input, and its heads; their numbers are compared in
tests/pretrained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model, generate
from tests.models.tiny import built, ids, logits_of, small

PAD = 1
END = 2
START = 5
TOKENS = jnp.array([[7, 8, 9, END, PAD, PAD], [7, END, 9, 4, 6, END]])


def test_bart_puts_its_start_token_before_the_input():
    model, _ = built(small("bart", decoder_start_token_id=START, number=1))
    np.testing.assert_array_equal(
        model.shift_right(TOKENS), [[START, 7, 8, 9, END, PAD], [START, 7, END, 9, 4, 6]]
    )


def test_mbart_brings_the_last_token_to_the_front():
    model, _ = built(small("mbart", number=1))
    tokens = jnp.array([[7, 8, 9, 30, PAD, PAD], [7, END, 9, 4, 6, 31]])
    np.testing.assert_array_equal(
        model.shift_right(tokens), [[30, 7, 8, 9, 30, PAD], [31, 7, END, 9, 4, 6]]
    )


@pytest.mark.nightly
def test_without_decoder_input_ids_the_input_is_read_again():
    model, params = built(small("bart", decoder_start_token_id=START, number=1))
    got = model.apply({"params": params}, TOKENS).logits
    due = model.apply({"params": params}, TOKENS, model.shift_right(TOKENS)).logits
    np.testing.assert_array_equal(got, due)


def test_classification_reads_the_last_end_token():
    """Not the first one, nothing behind it, and no other column where there is none."""
    model, params = built(small("bart", head="sequence_classification", num_labels=3, number=1))
    logits = logits_of(model, params, input_ids=TOKENS)
    assert logits.shape == (2, 3) and np.isfinite(logits).all()
    changed = logits_of(model, params, input_ids=TOKENS.at[1, 4].set(9))
    assert not np.array_equal(changed[1], logits[1])
    without = logits_of(model, params, input_ids=TOKENS.at[0, 3].set(9))
    assert np.isnan(without[0]).all() and np.isfinite(without[1]).all()


def test_generation_starts_with_the_token_of_the_config():
    model, params = built(small("bart", decoder_start_token_id=START, number=1))
    assert generate(model, params, TOKENS[1:], max_new_tokens=2)[0, 0] == START
    assert (
        generate(model, params, TOKENS[1:], max_new_tokens=2, decoder_start_token_id=3)[0, 0] == 3
    )


def test_t5_asks_for_decoder_input_ids():
    model, params = built(small("t5", number=1))
    with pytest.raises(ValueError, match="decoder_input_ids is missing"):
        model.apply({"params": params}, ids())


@pytest.mark.parametrize("family", ["bart", "t5", "marian"])
def test_bare_model(family):
    model = build_model(family, "tiny", vocab_size=37, head="none", pad_token_id=PAD)
    output, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), ids(), ids())
    assert output.logits is None and "lm_head" not in variables["params"]
    assert output.last_hidden_state.shape == output.encoder_last_hidden_state.shape == (2, 10, 128)
