"""Log-likelihoods are the forward pass's own, whatever stands beside or behind them in the
batch."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import score
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.data.tokenizer import Bytes
from flaxformer_lite.generation.harness import HarnessModel
from flaxformer_lite.pretrained.tokenizer import load_tokenizer
from tests.models.tiny import built, is_encoder_decoder, logits_of, small

PROMPTS = [[1, 2, 3, 4], [5, 6], [7]]
CONTINUATIONS = [[8, 9], [10, 11, 12, 13, 14], [15]]


def alone(cfg, model, params, prompt, continuation):
    if is_encoder_decoder(cfg):
        row = [0, *continuation]
        logits = logits_of(
            model, params, input_ids=jnp.asarray([prompt]), decoder_input_ids=jnp.asarray([row])
        )
    else:
        row = [*prompt, *continuation]
        logits = logits_of(model, params, input_ids=jnp.asarray([row]))
    logits = np.asarray(logits[0, -1 - len(continuation) : -1])
    return np.asarray(jax.nn.log_softmax(logits))[
        range(len(continuation)), continuation
    ], logits.argmax(-1)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_each_pair_as_if_alone(family):
    cfg = small(family)
    model, params = built(cfg)
    scores = score(model, params, PROMPTS, CONTINUATIONS)
    for i, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        logprobs, best = alone(cfg, model, params, prompt, continuation)
        np.testing.assert_allclose(scores.logprobs[i, : len(continuation)], logprobs, rtol=1e-4)
        np.testing.assert_allclose(scores.log_likelihood[i], logprobs.sum(), rtol=1e-4)
        assert not scores.logprobs[i, len(continuation) :].any()
        assert not scores.greedy[i] or best.tolist() == continuation
        likeliest = score(
            model, params, [prompt] * 3, [[int(best[0])], continuation, [int(best[0])]]
        )
        assert likeliest.greedy.tolist() == [True, best.tolist() == continuation, True]
    before = recompiles.total()
    score(model, params, [[3], [4, 5, 6], [1]], [[1, 2], [3], [4]])
    assert recompiles.total() == before


@pytest.mark.parametrize(
    ("prompts", "continuations", "message"),
    [
        ([[1]], [], "1 prompts and 0 continuations"),
        ([[]], [[1]], "needs at least one token"),
        ([[1] * 9], [[1] * 9], "max_length=16; shorten a prompt and its continuation"),
        ([[1]], [[99]], "holds the id 99"),
    ],
)
def test_errors(prompts, continuations, message):
    cfg = small("gpt2")
    with pytest.raises(ValueError, match=message):
        score(types.SimpleNamespace(cfg=cfg), None, prompts, continuations)


def request(*args):
    return types.SimpleNamespace(args=args)


def test_the_harness_gets_what_it_asks_for():
    tokenizer = Bytes()
    cfg = small("llama", vocab_size=tokenizer.vocab_size, max_length=32)
    model, params = built(cfg)
    harness = HarnessModel(model, params, tokenizer, batch_size=2)
    pairs = [("ab ", "cd"), ("", "x"), ("abc", " d")]
    found = harness.loglikelihood([request(*pair) for pair in pairs])
    heads = [tokenizer.encode("ab"), [harness.prefix], tokenizer.encode("abc")]
    tails = [tokenizer.encode(text) for text in (" cd", "x", " d")]
    want = score(model, params, heads, tails)
    np.testing.assert_allclose([total for total, _ in found], want.log_likelihood, rtol=1e-5)
    text = "a text of more than thirty-two bytes, read in pieces"
    ids = [harness.prefix, *tokenizer.encode(text)]
    last = score(model, params, [ids[len(ids) - 33 : 33]], [ids[33:]]).log_likelihood[0]
    whole = score(model, params, [ids[:1]], [ids[1:33]]).log_likelihood[0] + last
    np.testing.assert_allclose(harness.loglikelihood_rolling([request(text)]), [whole], rtol=1e-5)
    free = harness.generate_until([request("hello", {"until": [], "max_gen_toks": 12})])[0]
    until = free[4:6]
    cut = harness.generate_until([request("hello", {"until": [until], "max_gen_toks": 12})])[0]
    assert cut == free[: free.index(until)]


def test_the_harness_reads_with_a_published_tokenizer(tmp_path):
    """Its special tokens frame a whole text, and none stands within one that is scored."""
    inner = Bytes()
    inner.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    cfg = small("llama", vocab_size=inner.vocab_size, max_length=32)
    model, params = built(cfg)
    requests = [request("ab ", "cd"), request("", "x")]
    ours, published = (
        HarnessModel(model, params, each) for each in (inner, load_tokenizer(tmp_path))
    )
    assert published.prefix == ours.prefix == inner.bos_id
    published.tokenizer.before = [inner.bos_id]  # as Llama's own does
    assert published.loglikelihood(requests) == ours.loglikelihood(requests)
    asked = [request("hello", {"until": ["z"], "max_gen_toks": 6})]
    assert published.generate_until(asked) == ours.generate_until(asked)


def test_the_harness_needs_a_token_that_begins_a_text():
    silent = types.SimpleNamespace(bos_id=None, eos_id=None, encode=lambda text: [])
    with pytest.raises(ValueError, match="neither bos_id nor eos_id"):
        HarnessModel(types.SimpleNamespace(cfg=small("llama")), None, silent)
