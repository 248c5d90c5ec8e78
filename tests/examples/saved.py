"""Checks that an outside family is saved as it was loaded."""

import json

import jax
import numpy as np
from safetensors.numpy import load_file

from flaxformer_lite import load_pretrained, save_pretrained
from tests.pretrained.fixtures import MANIFEST, OUTSIDE, ROOT, loaded


def check_round_trip(name, folder):
    """Tensors and names are the fixture's, and what is written reads back as the same model."""
    model, params = loaded(name)
    save_pretrained(folder, model, params)
    due = load_file(ROOT / name / "model.safetensors")
    got = load_file(folder / "model.safetensors")
    assert set(got) == set(due)
    for key, array in due.items():
        np.testing.assert_array_equal(got[key], array.astype(np.float32), err_msg=key)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [MANIFEST[name]["architecture"]]
    again, same = load_pretrained(folder, family=OUTSIDE[MANIFEST[name]["model_type"]])
    assert again.cfg == model.cfg
    jax.tree.map(np.testing.assert_array_equal, params, same)
