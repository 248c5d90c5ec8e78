"""Guesses change how long writing takes, and nothing that is written; a draft's samples have the
model's own distribution."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import chdtrc  # scipy.stats would take a second to import

from flaxformer_lite import generate, registry, stream
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.inference import speculative
from flaxformer_lite.inference.rules import rules_of
from flaxformer_lite.inference.settings import Settings
from tests.marks import daily
from tests.models.tiny import built, ids, logits_of, small

NEW = 40
LEVEL = 1e-4  # of a chi-square test; its numbers are fixed by seeds
CASES = {
    "windows, grouped heads": ("llama", {"windows": (4,), "num_kv_heads": 2}),
    "windows, scanned, a position table": ("gpt2", {"windows": (3,), "scan": True}),
    "windows, a position table": ("gpt2", {"windows": (3,), "number": 1}),
    "int8 cache": ("llama", {"cache": "int8"}),
    "alibi": ("bloom", {}),
    "experts": ("mixtral", {}),
    "one vector a token": ("deepseek_v2", {}),
    "encoder-decoder": ("transformer", {}),
    "encoder-decoder, scanned": ("umt5", {"scan": True}),
}
DAILY = ("windows, a position table",)


def model_of(family, seed=0, **options):
    """A model with room for the prompts and NEW tokens, and none for a guess behind them."""
    length = {} if family in ("t5", "umt5") else {"max_length": NEW + 7}
    return built(small(family, **length, **options), seed)


def prompts():
    return [np.asarray(ids(seed, 1, length)[0]).tolist() for seed, length in ((1, 7), (2, 4))]


def stop_token(model, params):
    """A token that ends one of two rows long before the other."""
    plain = generate(model, params, prompts(), max_new_tokens=NEW, eos_token_id=36)
    written = [row.tolist() for row in plain[:, -NEW:]]
    apart = {}
    for token in {*written[0], *written[1]}:
        first = [row.index(token) if token in row else NEW for row in written]
        apart[token] = abs(first[0] - first[1])
    assert max(apart.values()) > 5, "no token ends one row alone; take another seed"
    return max(apart, key=lambda token: (apart[token], token))


def same(found, expected):
    np.testing.assert_array_equal(found.sequences, expected.sequences)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.parametrize("case", daily(CASES, DAILY))
def test_greedy_rows_of_unequal_length_are_those_without_guesses(case):
    family, options = CASES[case]
    model, params = model_of(family, **options)
    stop = stop_token(model, params)
    write = functools.partial(generate, model, params, prompts(), max_new_tokens=NEW)
    plain = write(eos_token_id=stop)
    np.testing.assert_array_equal(write(eos_token_id=stop, prompt_lookup_num_tokens=5), plain)
    if not model.cfg.encoder_layers:
        np.testing.assert_array_equal(write(eos_token_id=stop, draft=(model, params)), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_right_guesses_save_reads(family):
    model, params = model_of(family)
    options = {"max_new_tokens": NEW, "return_scores": True}
    write = functools.partial(generate, model, params, prompts(), **options)
    plain = write()
    assert plain.reads is None
    found = write(prompt_lookup_num_tokens=5)
    same(found, plain)
    assert (found.reads < NEW - 1).all(), "no guess was right"
    if family == "t5":
        return
    found = write(draft=(model, params))
    same(found, plain)
    assert found.reads.tolist() == [-(-(NEW - 1) // 5)] * 2, "each read gives 4 + 1 tokens"
    found = write(draft=model_of("gpt2", seed=1), num_assistant_tokens=2)
    same(found, plain)


SAMPLED = {"temperature": 0.05, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "seed": 7}
SAMPLED |= {"repetition_penalty": 1.02, "num_return_sequences": 3, "min_new_tokens": 10}
SAMPLED |= {"eos_token_id": (3, 4), "forced_eos_token_id": 5, "suppress_tokens": (1,)}


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [1, 2])
def test_a_lookup_draws_what_is_drawn_without_it(rows):
    model, params = model_of("gpt2")
    options = {"max_new_tokens": NEW, "return_scores": True, **SAMPLED}
    write = functools.partial(generate, model, params, prompts()[:rows], **options)
    found = write(prompt_lookup_num_tokens=3)
    same(found, write())
    assert (found.reads[found.lengths == NEW] < NEW - 1).any(), "no guess was right"


@pytest.mark.nightly
def test_no_repeated_ngrams_and_one_row():
    model, params = model_of("llama", num_kv_heads=2)
    options = {"max_new_tokens": NEW, "no_repeat_ngram_size": 3, "return_scores": True}
    write = functools.partial(generate, model, params, prompts()[:1], **options)
    for guess in ({"prompt_lookup_num_tokens": 4}, {"draft": model_of("gpt2", seed=1)}):
        same(write(**guess), write())


class Letters:
    def decode(self, ids):
        return "".join(chr(97 + int(i) % 26) for i in ids)


@pytest.mark.nightly
def test_streams_and_stop_strings_are_those_without_guesses_and_nothing_compiles_twice():
    model, params = model_of("gpt2", windows=(3,), scan=True)
    options = {"max_new_tokens": NEW, "eos_token_id": stop_token(model, params)}
    guess = {"prompt_lookup_num_tokens": 5}
    plain = generate(model, params, prompts(), **options)[:, 7:]
    ways = {"stop_strings": Letters().decode(plain[0])[8:11], "tokenizer": Letters()}
    stopped = generate(model, params, prompts(), **options, **ways)
    pieces = list(stream(model, params, prompts(), **options, **guess))
    before = recompiles.total()
    assert max(piece.shape[1] for piece in pieces) == 1
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), plain)
    pieces = list(stream(model, params, prompts(), every=7, **options, **guess))
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), plain)
    found = generate(model, params, prompts(), **options, **ways, **guess)
    np.testing.assert_array_equal(found, stopped)
    other = [[5, 6, 7, 8, 9, 10], [11]]
    generate(model, params, other, **options | {"max_new_tokens": NEW - 3}, **guess)
    assert recompiles.total() == before


def chi_square(counts, expected):
    """Asserts that counts are those of these probabilities."""
    expected = expected / expected.sum() * counts.sum()
    assert counts[expected == 0].sum() == 0, "impossible"
    kept = expected >= 5
    found, due = (np.append(x[kept], x[~kept].sum()) for x in (counts, expected))
    possible = due > 0
    assert possible.sum() > 1
    statistic = (np.square(found - due)[possible] / due[possible]).sum()
    assert chdtrc(possible.sum() - 1, statistic) > LEVEL


def test_kept_and_replaced_tokens_have_the_models_distribution():
    rows = 5000
    K = 2
    V = 5
    draws = np.random.default_rng(0)
    p_TV = draws.dirichlet(np.ones(V), K + 1).astype(np.float32)
    q_KV = draws.dirichlet(np.ones(V), K).astype(np.float32)
    q_KV[0, 1] = 0  # a token that the draft never guesses
    q_KV[0] /= q_KV[0].sum()
    guess = np.stack([draws.choice(V, rows, p=q / q.sum()) for q in q_KV.astype(float)], axis=1)
    rules = rules_of(Settings(max_new_tokens=9, temperature=1.0), 9, 0)
    token, accepted = jax.jit(speculative._accept_or_replace)(
        rules,
        jnp.broadcast_to(jnp.log(p_TV), (rows, K + 1, V)),
        jnp.broadcast_to(jnp.log(q_KV), (rows, K, V)),
        jnp.asarray(guess, jnp.int32),
        np.uint32(1),
        jnp.ones(rows, jnp.int32),
    )
    token = np.asarray(token)
    accepted = np.asarray(accepted)
    reached = np.ones(rows, bool)
    for position in range(K + 1):
        counts = np.bincount(token[reached, position], minlength=V)
        chi_square(counts, p_TV[position].astype(float))
        if position < K:
            rate = accepted[reached, position].mean()
            assert abs(rate - np.minimum(p_TV[position], q_KV[position]).sum()) < 0.03
            reached &= accepted[:, position]


def distribution(logits, written, settings):
    """The processed distribution of one next token, in numpy, by the papers' definitions."""
    logits = np.array(logits, np.float64)
    for token in set(written):
        penalty = settings["repetition_penalty"]
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    logits /= settings["temperature"]
    logits[logits < np.sort(logits)[-settings["top_k"]]] = -np.inf
    p = np.exp(logits - logits.max())
    p /= p.sum()
    order = np.argsort(-p)
    nucleus = order[: np.searchsorted(np.cumsum(p[order]), settings["top_p"]) + 1]
    p[np.setdiff1d(order, nucleus)] = 0
    p[p < settings["min_p"] * p.max()] = 0
    return p / p.sum()


@pytest.mark.nightly
def test_the_samples_of_a_draft_have_the_models_distribution():
    """All texts of three tokens by the definition, beside 40,000 draws with a draft that errs."""
    V = 7
    new = 4
    prompt = [1, 2]
    model, params = built(small("gpt2", number=1, vocab_size=V))
    draft = built(small("llama", number=1, vocab_size=V, num_kv_heads=2), 3)
    settings = {"temperature": 1.3, "top_k": 6, "top_p": 0.95, "min_p": 0.02}
    settings |= {"repetition_penalty": 1.2}
    options = {"max_new_tokens": new, "num_return_sequences": 2000, "return_scores": True}
    options |= {"draft": draft, "num_assistant_tokens": 2}
    texts = list(itertools.product(range(V), repeat=new))
    rows = np.asarray([[*prompt, *text] for text in texts], np.int32)
    logits = np.asarray(logits_of(model, params, input_ids=rows))[:, len(prompt) - 1 : -1]
    probability = np.ones(len(texts))
    for number, row in enumerate(rows.tolist()):
        for step in range(new):
            at = len(prompt) + step
            probability[number] *= distribution(logits[number, step], row[:at], settings)[row[at]]
    np.testing.assert_allclose(probability.sum(), 1, rtol=1e-5)
    place = {text: number for number, text in enumerate(texts)}
    counts = np.zeros(len(texts))
    reads = []
    for seed in range(20):
        found = generate(model, params, [prompt], seed=seed, **options, **settings)
        reads.append(found.reads)
        for row in found.sequences[:, len(prompt) :].tolist():
            counts[place[tuple(row)]] += 1
    chi_square(counts, probability)
    assert len(np.unique(np.concatenate(reads))) > 1, "all guesses were right, or none"


@pytest.mark.nightly
def test_1000_prompts_of_a_trained_model():
    """Ties within rounding could change a text; in a trained model there is none among these."""
    text = np.tile(np.arange(36, dtype=np.int32) + 1, 30)
    noise = np.random.default_rng(0)
    text = np.where(noise.random(len(text)) < 0.2, noise.integers(1, 37, len(text)), text)
    model, params = model_of("llama", num_kv_heads=2)
    tx = optax.sgd(0.3, momentum=0.9)

    @jax.jit
    def step(params, moments, rows):
        def loss(params):
            logits = model.apply({"params": params}, rows[:, :-1]).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = tx.update(grads, moments)
        return optax.apply_updates(params, updates), moments, value

    moments = tx.init(params)
    for _ in range(150):
        starts = noise.integers(0, len(text) - 20, 32)
        rows = np.stack([text[start : start + 20] for start in starts])
        params, moments, loss = step(params, moments, rows)
    assert loss < 2.5
    starts = noise.integers(0, len(text) - 7, 1000)
    rows = np.stack([text[start : start + 7] for start in starts])
    guesses = ({"prompt_lookup_num_tokens": 6}, {"draft": model_of("gpt2", seed=1)})
    for cache in ("float", "int8"):
        model, _ = model_of("llama", num_kv_heads=2, cache=cache)
        plain = generate(model, params, rows, max_new_tokens=NEW)
        for guess in guesses:
            found = generate(model, params, rows, max_new_tokens=NEW, **guess)
            np.testing.assert_array_equal(found, plain)


DRAFT = {"prompt_lookup_num_tokens": 0}
REFUSED = [
    ("gpt2", {"num_beams": 2}, "num_beams=2: beam search.*leave out draft"),
    ("recurrent", {}, "keeps a state, which cannot go back"),
    ("qwen3_next", {}, "keeps a state, which cannot go back"),
    ("switch_transformers", {}, "experts with limited room"),
    ("gpt2", {"prompt_lookup_num_tokens": 257}, "must be at most 256"),
    ("gpt2", DRAFT | {"num_assistant_tokens": 3}, r"tokens=3: needs draft=\(model, params\)"),
    ("gpt2", {"draft": 3}, r"draft: is a int; pass \(model, params\)"),
    ("gpt2", {"draft": ("gpt2", {})}, "looked up, or a draft's; leave out one"),
    ("gpt2", DRAFT | {"draft": ("gpt2", {"vocab_size": 41})}, "a vocabulary of 41, the model 37"),
    (
        "gpt2",
        DRAFT | {"draft": ("gpt2", {"max_length": 6})},
        "ends at 6, where prompt and .* have 8",
    ),
    ("gpt2", DRAFT | {"draft": ("t5", {})}, "draft: must be .* a decoder"),
    ("t5", DRAFT | {"draft": ("gpt2", {})}, "draft: t5 is an encoder-decoder"),
]


@pytest.mark.parametrize(("family", "options", "message"), REFUSED)
def test_what_cannot_be_guessed_is_refused_before_anything_compiles(family, options, message):
    options = {"max_new_tokens": 3, "prompt_lookup_num_tokens": 4, **options}
    if isinstance(options.get("draft"), tuple):
        other, sizes = options["draft"]
        options["draft"] = (registry.resolve("models", other).Model(small(other, **sizes)), None)
    model = registry.resolve("models", family).Model(small(family))
    with pytest.raises(ValueError, match=message):
        generate(model, None, [[1, 2, 3, 4, 5]], **options)
