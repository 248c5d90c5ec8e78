"""Beam search finds what a plain Python search finds, scores included, for unequal prompts side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import generate
from tests.generation.beam_reference import beam_search
from tests.models.tiny import built, ids, logits_of, small, two_sided

WAYS = {
    "plain": {"length_penalty": 1.0},
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 2.0},
    "short": {"length_penalty": -0.5, "eos_token_id": (5, 9)},
    "no_stop": {"eos_token_id": None},
}
MODELS = {"gpt2": {}, "llama": {"num_kv_heads": 2, "windows": (4,), "scan": True}, "t5": {}}
NEW, BEAMS = 6, 3


def stepper(cfg, model, params, source):
    width = NEW + (1 if two_sided(cfg) else len(source))

    def next_logprobs(row):
        padded = jnp.asarray([row + [0] * (width - len(row))], jnp.int32)
        if two_sided(cfg):
            logits = logits_of(model, params, input_ids=jnp.asarray([source], jnp.int32), decoder_input_ids=padded)
        else:
            logits = logits_of(model, params, input_ids=padded)
        return np.asarray(jax.nn.log_softmax(logits[0, len(row) - 1]))

    return next_logprobs


CASES = [("gpt2", way) for way in WAYS] + [("llama", "plain"), ("t5", "plain"), ("t5", "never")]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_beam_search_equals_the_plain_search(family, way):
    cfg = small(family, **MODELS[family])
    model, params = built(cfg, seed=3)
    settings = {"eos_token_id": (7, 18), **WAYS[way]}
    sources = [np.asarray(ids(seed, 1, length)[0]).tolist() for seed, length in ((1, 6), (2, 3))]
    mask = [[1] * 6, [0] * 3 + [1] * 3]
    rows = [sources[0], [0] * 3 + sources[1]]
    if two_sided(cfg):
        mask, rows = [[1] * 6, [1] * 3 + [0] * 3], [sources[0], sources[1] + [0] * 3]
    found = generate(
        model, params, np.asarray(rows), mask, max_new_tokens=NEW, num_beams=BEAMS, num_return_sequences=2,
        pad_token_id=1, decoder_start_token_id=0, return_scores=True, **settings,
    )  # fmt: skip
    eos = set(settings.pop("eos_token_id") or ())
    for i, source in enumerate(sources):
        step = stepper(cfg, model, params, source)
        prompt = [0] if two_sided(cfg) else source
        want, scores = beam_search(step, prompt, beams=BEAMS, new=NEW, eos=eos, returned=2, **settings)
        start = found.sequences.shape[1] - max(found.lengths)
        for j in range(2):
            row = 2 * i + j
            assert found.sequences[row, start : start + found.lengths[row]].tolist() == want[j][len(prompt) :]
        np.testing.assert_allclose(found.sequences_scores[2 * i : 2 * i + 2], scores, rtol=1e-4)
