"""Log-likelihoods are the forward pass's own, whatever stands beside or behind them in the
batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import t5_tiny
from flaxformer_lite import generate, load_pretrained, score
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.config import ConfigError, LayerKind
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.marks import daily
from tests.models.tiny import T, built, ids, is_encoder_decoder, logits_of, small
from tests.pretrained.test_refusals import copied, edit_config

OTHER_START = {"decoder_start_token_id": 7}
PROMPTS = [[1, 2, 3, 4], [5, 6], [7]]
CONTINUATIONS = [[8, 9], [10, 11, 12, 13, 14], [15]]


def alone(cfg, model, params, prompt, continuation):
    if is_encoder_decoder(cfg):
        inputs = {"input_ids": prompt, "decoder_input_ids": [0, *continuation]}
    else:
        inputs = {"input_ids": [*prompt, *continuation]}
    rows = {name: jnp.asarray([row]) for name, row in inputs.items()}
    logits = np.asarray(logits_of(model, params, **rows)[0, -1 - len(continuation) : -1])
    logprobs = np.asarray(jax.nn.log_softmax(logits))
    return logprobs[range(len(continuation)), continuation], logits.argmax(-1)


@pytest.mark.parametrize("family", daily(["gpt2", "t5"], ["gpt2"]))
def test_each_pair_as_if_alone(family):
    cfg = small(family, number=1)
    model, params = built(cfg)
    scores = score(model, params, PROMPTS, CONTINUATIONS)
    for i, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        logprobs, best = alone(cfg, model, params, prompt, continuation)
        np.testing.assert_allclose(scores.logprobs[i, : len(continuation)], logprobs, rtol=1e-4)
        np.testing.assert_allclose(scores.log_likelihood[i], logprobs.sum(), rtol=1e-4)
        assert not scores.logprobs[i, len(continuation) :].any()
        assert not scores.greedy[i] or best.tolist() == continuation
        first = [int(best[0])]
        likeliest = score(model, params, [prompt] * 3, [first, continuation, first])
        assert likeliest.greedy.tolist() == [True, best.tolist() == continuation, True]
    before = recompiles.total()
    score(model, params, [[3], [4, 5, 6], [1]], [[1, 2], [3], [4]])
    assert recompiles.total() == before


@pytest.mark.nightly
def test_room_by_a_factor_counts_no_columns_of_our_own():
    """A source of 10 tokens has room for 1 to an expert; 16 columns would have room for 2."""
    experts = CapacityMoeConfig(num_experts=4, eval_capacity_factor=0.5)
    pattern = (LayerKind(feed_forward=experts),)
    cfg = small("switch_transformers", number=1, pattern=pattern)
    model, params = built(cfg)
    source = ids(batch=1).tolist()
    logprobs, best = alone(cfg, model, params, source[0], [8])
    # each column of padding would let experts keep tokens that they have no room for
    assert experts.expert_capacity(T, training=False) < experts.expert_capacity(16, training=False)
    scores = score(model, params, source, [[8]])
    np.testing.assert_allclose(scores.logprobs, [logprobs], rtol=1e-5)
    written = generate(model, params, source, max_new_tokens=1)
    assert written[0, -1] == best[0]


@pytest.mark.parametrize(
    ("prompts", "continuations", "message"),
    [
        ([[1]], [], r"continuations:.*lists"),
        ([[]], [[1]], "needs at least one token"),
        ([[1] * 9], [[1] * 9], r"max_length=16;.*shorten.*continuation"),
        ([[1]], [[99]], "holds the id 99"),
    ],
)
def test_errors(prompts, continuations, message):
    model, params = built(small("gpt2", number=1))
    with pytest.raises(ValueError, match=message):
        score(model, params, prompts, continuations)


# From transformers 5.23: the fixtures' log-likelihoods of [8, 9, 10] after [5, 7, 9, 11], by the
# start token of config.json and by another one.
STARTS = {
    "marian_conditional_generation": (-16.8065, -16.1800),
    "marian_separate_conditional_generation": (-15.7501, -16.2767),
    "pegasus_conditional_generation": (-15.8828, -16.4287),
    "mbart_conditional_generation": (-13.6159, -15.2088),
    "t5_conditional_generation": (-12.2681, -12.9615),
}


@pytest.mark.nightly  # of generation, tests/models/test_bart.py
@pytest.mark.parametrize("name", STARTS)
def test_the_decoder_starts_as_config_json_says(name, tmp_path):
    folder = copied(name, tmp_path)
    usual, other = STARTS[name]
    for changes, want in (({}, usual), ({"pad_token_id": 6}, usual), (OTHER_START, other)):
        edit_config(folder, **changes)
        model, params = load_pretrained(folder)
        got = score(model, params, [[5, 7, 9, 11]], [[8, 9, 10]]).log_likelihood
        np.testing.assert_allclose(got, [want], atol=2e-4)
    written = generate(model, params, [[5, 7]], max_new_tokens=1)
    assert written[0, 0] == OTHER_START["decoder_start_token_id"]


@pytest.mark.nightly
def test_a_decoder_that_starts_with_a_language_is_told_which(tmp_path):
    """transformers starts mBART's with the last token of the target, which none of ours ends with,
    and writes from bos."""
    folder = copied("mbart_conditional_generation", tmp_path)
    edit_config(folder, decoder_start_token_id=None)
    model, params = load_pretrained(folder)
    refused = "decoder_start_token_id=None: .* mbart starts with .* pass decoder_start_token_id="
    with pytest.raises(ConfigError, match=refused):
        score(model, params, [[5, 7]], [[8]])
    with pytest.raises(ConfigError, match=refused):
        generate(model, params, [[5, 7]], max_new_tokens=1)
    given = score(model, params, [[5, 7, 9, 11]], [[8, 9, 10]], decoder_start_token_id=7)
    np.testing.assert_allclose(given.log_likelihood, [-15.2088], atol=2e-4)
    generate(model, params, [[5, 7]], decoder_input_ids=[[3]], max_new_tokens=1)
    config = t5_tiny.get_config()
    config.train.init_from = str(folder)
    config.data.tokenizer.path = str(tmp_path / "tokenizer.bytes")
    with pytest.raises(ConfigError, match=r"train\.init_from.* --config\.model\.decoder_start"):
        read_experiment(config)
    config.model.decoder_start_token_id = 7
    config.data.length = 16
    given = read_experiment(config, given=["model.decoder_start_token_id"])
    assert given.model.decoder_start_token_id == 7
