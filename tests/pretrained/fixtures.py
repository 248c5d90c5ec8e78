"""The reference checkpoints of tests/fixtures, and what torch transformers made of them."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
from safetensors import safe_open

from flaxformer_lite import load_pretrained, registry

ROOT = Path(__file__).parents[1] / "fixtures"
MANIFEST = json.loads((ROOT / "manifest.json").read_text())["fixtures"]
OUTSIDE = {"phi": "examples.phi:Model", "modernbert": "examples.modernbert:Model"}  # of examples/
KNOWN = [
    n for n in registry.available("models") if hasattr(registry.resolve("models", n), "PUBLISHED")
]
NAMES = [name for name, row in MANIFEST.items() if row["model_type"].replace("-", "_") in KNOWN]


@functools.cache
def expected(name):
    with np.load(ROOT / name / "expected.npz") as file:
        return dict(file)


def stored(folder):
    """The tensors of a directory's files, by name."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


def part(name, prefix):
    return {
        key.removeprefix(prefix): value
        for key, value in expected(name).items()
        if key.startswith(prefix)
    }


@functools.cache
def loaded(name):
    return load_pretrained(ROOT / name, family=OUTSIDE.get(MANIFEST[name]["model_type"]))


@functools.partial(jax.jit, static_argnums=0)
def outputs(model, params, inputs):
    return model.apply({"params": params}, **inputs)


def errors(model, params, name):
    """The largest difference of every output of every case, relative to the largest value; padding
    aside."""
    for case in MANIFEST[name]["cases"]:
        inputs = part(name, f"{case}/in/")
        output = outputs(model, params, inputs)
        for field, due in part(name, f"{case}/out/").items():
            got = np.asarray(getattr(output, field), np.float32)
            assert got.shape == due.shape, f"{case} {field}"
            kept = mask_of(inputs, field, got)
            yield f"{case} {field}", np.abs(got - due)[kept].max() / np.abs(due[kept]).max()


def mask_of(inputs, field, array):
    is_encoder_decoder = "decoder_input_ids" in inputs and field != "encoder_last_hidden_state"
    mask = inputs.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
    if mask is None or mask.ndim != 2 or array.ndim < 2 or array.shape[:2] != mask.shape:
        return np.ones(array.shape[:1], bool)
    return mask == 1
