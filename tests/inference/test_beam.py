"""Beam search finds what a plain Python search finds, scores included, for unequal prompts side by
side.

Encoder-decoders, and what transformers finds, are in test_published.py.
"""

import jax
import numpy as np
import pytest

from flaxformer_lite import LayerKind, generate
from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from tests.inference.beam_reference import beam_search
from tests.marks import daily
from tests.models.tiny import built, ids, logits_of, small

WAYS = {
    "plain": {"length_penalty": 1.0},
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 2.0},
    "short": {"length_penalty": -0.5},
    "three_stops": {"eos_token_id": (5, 9, 18)},
    "no_stop": {"eos_token_id": None},
}
RECURRENT = {"family": "gpt2", "number": 2, "scan": True}
RECURRENT |= {"pattern": (LayerKind(mixer=LstmConfig()), LayerKind())}
MODELS = {
    "gpt2": {"family": "gpt2"},
    "llama": {"family": "llama", "num_kv_heads": 2, "windows": (4,), "scan": True},
    "lstm and attention": RECURRENT,
}
LENGTH = 6
NEW = 6
BEAMS = 3


def stepper(model, params):
    def next_logprobs(row):
        padded = np.asarray([row + [0] * (LENGTH + NEW - len(row))], np.int32)
        logits = logits_of(model, params, input_ids=padded)[0, len(row) - 1]
        return np.asarray(jax.nn.log_softmax(logits))

    return next_logprobs


ROWS = [("gpt2", way, 2) for way in WAYS]
RARE = [(name, "plain", rows) for name in ("llama", "lstm and attention") for rows in (1, 2)]


@pytest.mark.parametrize(("name", "way", "rows"), daily(ROWS + RARE, ROWS))
def test_beam_search_equals_the_plain_search(name, way, rows):
    model, params = built(small(**{"number": 1, **MODELS[name]}), seed=3)
    settings = {"eos_token_id": (7, 18), **WAYS[way]}
    prompts = [
        np.asarray(ids(seed, 1, length)[0]).tolist() for seed, length in ((1, LENGTH), (2, 3))
    ][:rows]
    options = {"max_new_tokens": NEW, "num_beams": BEAMS, "num_return_sequences": 2}
    options |= {"pad_token_id": 1, "return_scores": True}
    found = generate(model, params, prompts, **options, **settings)
    eos = set(settings.pop("eos_token_id") or ())
    for i, prompt in enumerate(prompts):
        want, scores = beam_search(
            stepper(model, params), prompt, beams=BEAMS, new=NEW, eos=eos, returned=2, **settings
        )
        for row, ids_of_row in zip((2 * i, 2 * i + 1), want, strict=True):
            written = found.sequences[row, LENGTH : LENGTH + found.lengths[row]]
            assert written.tolist() == ids_of_row[len(prompt) :]
        np.testing.assert_allclose(found.sequences_scores[2 * i : 2 * i + 2], scores, rtol=1e-4)
