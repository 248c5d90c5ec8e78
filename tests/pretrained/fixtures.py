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
KNOWN = [
    n for n in registry.available("models") if hasattr(registry.resolve("models", n), "PUBLISHED")
]
NAMES = [name for name, row in MANIFEST.items() if row["model_type"].replace("-", "_") in KNOWN]

HEADS = (
    "lm",
    "masked_lm",
    "conditional_generation",
    "base",
)  # the first of these is a family's main
# What other fixtures do not have: a head, or a form of the body. Other heads are spelled as these.
OWN = (
    "bert_pretraining",
    "bert_causal_lm",
    "bert_sequence_classification",
    "bert_question_answering",
    "bert_multiple_choice",
    "distilbert_sequence_classification",
    "roberta_sequence_classification",
    "electra_pretraining",
    "electra_sequence_classification",
    "albert_pretraining",
    "albert_groups_base",
    "albert_unshared_base",
    "roformer_value_base",
    "gpt2_sequence_classification",
    "gpt2_token_classification",
    "llama_question_answering",
    "llama3_lm",
    "gpt_neox_sequential_lm",
    "opt_350m_lm",
    "t5_v1_1_conditional_generation",
    "t5_encoder",
    "t5_sequence_classification",
    "t5_token_classification",
    "bart_sequence_classification",
    "bart_lm",
    "marian_separate_conditional_generation",
)


def main_fixtures():
    """One fixture of each published family, so that a new family has one at every change."""
    found = {}
    for name in NAMES:
        row = MANIFEST[name]
        if row["head"] in HEADS:
            found.setdefault(row["model_type"], []).append(name)
    order = lambda name: HEADS.index(MANIFEST[name]["head"])  # noqa: E731
    return [min(names, key=order) for names in found.values()]


DAILY = {*main_fixtures(), *OWN}


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
    return load_pretrained(ROOT / name)


@functools.partial(jax.jit, static_argnums=0)
def outputs(model, params, inputs):
    return model.apply({"params": params}, **inputs)


def errors(model, params, name, cases=None):
    """The largest difference of every output of every case, or of these cases, relative to the
    largest value; padding aside."""
    for case in cases or MANIFEST[name]["cases"]:
        inputs = part(name, f"{case}/in/")
        output = model.apply({"params": params}, **inputs)
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
