"""The adapter of the harness scores and writes as `score` and `generate` do."""

import types

import numpy as np
import pytest

from flaxformer_lite import generate, score
from flaxformer_lite.contrib.lm_eval.harness import HarnessModel
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.text.tokenizer import Bytes
from tests.models.tiny import built, small


def request(*args):
    return types.SimpleNamespace(args=args)


@pytest.mark.nightly
def test_the_harness_gets_what_it_asks_for():
    tokenizer = Bytes()
    cfg = small("llama", vocab_size=tokenizer.vocab_size, max_length=32, number=1)
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
    settings = {"until": [], "max_gen_toks": 12}
    contexts = ("hello", "", "a longer one")  # two batches, the longest first
    free, *_ = harness.generate_until([request(context, settings) for context in contexts])
    until = free[4:6]
    asked = [request("hello", {"until": ["", until], "max_tokens": 12})]  # another of its names
    assert harness.generate_until(asked) == [free[: free.index(until)]]
    tokenizer.vocab_size = tokenizer.first + 26  # no byte of a letter or digit is left
    others = sorted(set(range(tokenizer.vocab_size)) - set(tokenizer.encode("\t")))
    # settings of a directory; a temperature counts only for tasks that sample
    generation = {"suppress_tokens": others, "temperature": 0.7}
    tabs = HarnessModel(model, params, tokenizer, generation=generation)
    assert tabs.generate_until([request("hello", settings)]) == ["\t" * 12]


@pytest.mark.nightly
def test_the_harness_reads_with_a_published_tokenizer(tmp_path):
    """Its special tokens frame a context, as in the harness's models of transformers, and none
    stands before a continuation without one."""
    inner = Bytes()
    inner.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    cfg = small("llama", vocab_size=inner.vocab_size, max_length=32, number=1)
    model, params = built(cfg)
    published = HarnessModel(model, params, load_tokenizer(tmp_path))
    bos = inner.bos_id
    assert published.prefix == bos
    published.tokenizer.before = [bos]  # as Llama's own does
    ab = inner.encode("ab")
    pairs = [("ab ", "cd"), ("", "x"), (f"{published.tokenizer.tokens['bos']}ab", "cd"), (" ", "x")]
    heads = [[bos, *ab], [bos], [bos, *ab], [bos]]
    tails = [inner.encode(text) for text in (" cd", "x", "cd", " x")]
    want = score(model, params, heads, tails).log_likelihood
    got = published.loglikelihood([request(*pair) for pair in pairs])
    np.testing.assert_allclose([total for total, _ in got], want, rtol=1e-5)
    rolled = published.loglikelihood_rolling([request("ab")])
    want = score(model, params, [[bos]], [[bos, *ab]]).log_likelihood
    np.testing.assert_allclose(rolled, want, rtol=1e-5)


def test_the_harness_needs_a_token_that_begins_a_text():
    silent = types.SimpleNamespace(bos_id=None, eos_id=None, encode=lambda text: [])
    with pytest.raises(ValueError, match="neither bos_id nor eos_id"):
        HarnessModel(types.SimpleNamespace(cfg=small("llama")), None, silent)


@pytest.mark.nightly
def test_the_harness_gives_the_context_to_an_encoder():
    """Framed by the special tokens of a text; the continuation is without them."""
    cfg = small("t5", vocab_size=Bytes().vocab_size, max_length=32, number=1)
    model, params = built(cfg)
    tokenizer = Framed()
    harness = HarnessModel(model, params, tokenizer, batch_size=2)
    found = harness.loglikelihood([request("ab ", "cd")])
    want = score(model, params, [tokenizer.encode("ab")], [Bytes().encode(" cd")])
    np.testing.assert_allclose(found[0][0], want.log_likelihood[0], rtol=1e-5)
    asked = {"until": [], "max_gen_toks": 5}
    eos = tokenizer.eos_id
    pad = tokenizer.pad_id
    settings = {"max_new_tokens": 5, "eos_token_id": eos, "pad_token_id": pad}
    written = generate(model, params, [tokenizer.encode("hello")], **settings)
    ids = [i for i in written[0, 1:].tolist() if i not in (eos, pad)]
    assert harness.generate_until([request("hello", asked)])[0] == tokenizer.decode(ids)


class Framed(Bytes):
    def encode(self, text, special_tokens=True):
        return super().encode(text) + ([self.eos_id] if special_tokens else [])
