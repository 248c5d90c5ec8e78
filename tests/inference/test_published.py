"""Comparison with torch transformers' generate on the same files: ids and scores, greedy and beams,
unequal prompts."""

import numpy as np
import pytest

from flaxformer_lite import generate
from tests.marks import daily
from tests.pretrained.fixtures import MANIFEST, loaded, part

NAMES = [name for name, entry in MANIFEST.items() if entry.get("generate")]
# One of each kind: the other families' prefill and steps are the same functions as in their beam
# search.
GREEDY = [name for name in NAMES if "penalties" in MANIFEST[name]["generate"]]
# All families write by the same functions; of forced tokens, test_generate.py.
DAILY = ("gpt2_lm",)


def settings_of(way):
    """transformers' arguments as ours: it spells greedy search do_sample=False."""
    return {key: value for key, value in way.items() if key != "do_sample"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(NAMES, DAILY))
def test_every_way_of_writing(name):
    model, params = loaded(name)
    prompts = part(name, "generate/in/")
    for way, settings in MANIFEST[name]["generate"].items():
        if settings["num_beams"] == 1 and name not in GREEDY:
            continue
        want = part(name, f"generate/{way}/")
        found = generate(model, params, **prompts, return_scores=True, **settings_of(settings))
        np.testing.assert_array_equal(found.sequences, want["sequences"], err_msg=way)
        if "sequences_scores" in want:
            np.testing.assert_allclose(
                found.sequences_scores, want["sequences_scores"], rtol=2e-5, err_msg=way
            )
            continue
        written = np.arange(found.logprobs.shape[1])[None] < found.lengths[:, None]
        np.testing.assert_allclose(
            found.logprobs[written], want["logprobs"][written], rtol=2e-5, atol=2e-6, err_msg=way
        )
