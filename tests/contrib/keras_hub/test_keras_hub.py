"""Presets of KerasHub, with the files and the numbers of KerasHub 0.32.

tools/keras_hub_numbers.py stored them; here each array is written into an h5 file by its name.
"""

import json
import sys
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.contrib.t5x.test_flaxformer import values
from tests.marks import daily

STORED = json.loads((Path(__file__).parent / "keras_hub.json").read_text())
NAMES = [name for name in STORED if name != "keras_hub"]
DAILY = ["bert_classifier", "roberta_masked_lm", "t5_1_1", "gemma2"]
INPUTS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "encoder_token_ids": "input_ids",
    "encoder_padding_mask": "attention_mask",
    "decoder_token_ids": "decoder_input_ids",
    "decoder_padding_mask": "decoder_attention_mask",
}
OUTPUTS = {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"}


def write(folder, name):
    folder.mkdir()
    for file, config in STORED[name]["configs"].items():
        (folder / file).write_text(json.dumps(config))
    for file, arrays in STORED[name]["arrays"].items():
        with h5py.File(folder / file, "w") as made:
            for path, shape in arrays.items():
                made[path] = values(path, shape)
    return folder


@pytest.mark.parametrize("name", daily(NAMES, DAILY))
def test_outputs_are_those_of_keras_hub(name, tmp_path):
    model, params = load_pretrained(write(tmp_path / name, name))
    given = {key: jnp.array(x) for key, x in STORED[name]["inputs"].items()}
    chosen = given.pop("mask_positions", None)
    inputs = {INPUTS[key]: x for key, x in given.items()}
    real = np.array(inputs.get("decoder_attention_mask", inputs["attention_mask"]), bool)
    output = jax.jit(model.apply)({"params": params}, **inputs)
    for key, expected in STORED[name]["outputs"].items():
        ours = np.array(getattr(output, OUTPUTS.get(key, key)))
        if chosen is not None:
            ours = np.take_along_axis(ours, np.array(chosen)[..., None], 1)
        theirs = np.array(expected)
        if ours.ndim == 3 and chosen is None:
            ours = ours[real]
            theirs = theirs[real]
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, np.abs(theirs).max()))


@pytest.fixture
def classifier(tmp_path):
    folder = write(tmp_path / "preset", "bert_classifier")
    assets = folder / "assets/tokenizer"
    assets.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##es", "\u00e9"]
    (assets / "vocabulary.txt").write_text("\n".join(words) + "\n")
    config = {"class_name": "BertTokenizer", "config": {"lowercase": True, "vocabulary": None}}
    (folder / "tokenizer.json").write_text(json.dumps(config))
    return folder


def test_convert_says_what_it_found_and_takes_the_tokenizer_along(classifier, tmp_path, capsys):
    main(["convert", str(classifier), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "a preset of KerasHub, BertBackbone with BertTextClassifier: bert with 2 layers" in said
    for folder in (classifier, tmp_path / "out"):
        assert load_tokenizer(folder).encode("The \u00c9 Foxes") == [2, 5, 8, 6, 7, 3]
    main(["inspect", str(classifier)])
    assert "KerasHub preset" in capsys.readouterr().out


WEIGHTS = "model.weights.h5"
DENSE = "layers/dense/vars/0"
LAYERS = "layers/transformer_encoder"


def edit(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config["config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))


def put(folder, path, value):
    """Writes an array in place of what is there; None deletes it."""
    with h5py.File(folder / WEIGHTS, "r+") as file:
        if path in file:
            del file[path]
        if value is not None:
            file[path] = value


def add_twice(folder):
    with h5py.File(folder / WEIGHTS, "r+") as file:
        file.copy(f"{LAYERS}_1", f"{LAYERS}_01")


NO_TASK = json.dumps({"class_name": "BertTextClassifier", "config": None})


def test_groups_that_are_linked_again_are_visited_once(classifier):
    """Each level doubles the paths, and the last leads back to the first."""
    due = load_pretrained(classifier)[1]
    with h5py.File(classifier / "model.weights.h5", "r+") as file:
        group = file.create_group("again")
        for _ in range(40):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
        group["a"] = file["again"]
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(classifier)[1], due)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / WEIGHTS).unlink(), "h5: missing; fetch the whole preset"),
        (lambda f: (f / WEIGHTS).write_bytes(b"\x89HDF\r\n"), "not an h5 file, or damaged"),
        (lambda f: put(f, "layers/embedding", None), "no tensor embeddings.token_type_embeddings"),
        (
            lambda f: put(f, DENSE, h5py.ExternalLink("/etc/passwd", "x")),
            "no tensor pooler.dense.weight",
        ),
        (
            lambda f: put(f, f"{LAYERS}/router/vars/0", np.zeros(2, "float32")),
            f"holds {LAYERS}/router/vars/0, which is not known",
        ),
        (lambda f: put(f, DENSE, np.zeros((8, 8), "int8")), "has dtype int8.*quantized"),
        (lambda f: edit(f, alibi=True), "alibi=True: a field that is not known"),
        (lambda f: edit(f, num_layers="two"), "num_layers='two': must be a number"),
        (lambda f: edit(f, num_heads=0), "num_heads=0: must be a number above 0"),
        (add_twice, r"vars/0: a second array for encoder\.layer\.1"),
        (
            lambda f: (f / "task.json").write_text(NO_TASK),
            r"classifier.bias .* has shape \[3\], but config.json implies \[2\]",
        ),
        (
            lambda f: edit(f, dtype={"class_name": "DTypePolicyMap"}),
            "quantized weights of KerasHub",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(classifier, change, message):
    change(classifier)
    with pytest.raises(WeightsError, match=message):
        load_pretrained(classifier)


def test_what_keras_hub_writes_itself_is_left_to_it(classifier):
    config = json.loads((classifier / "config.json").read_text())
    (classifier / "config.json").write_text(json.dumps(config | {"class_name": "GPT2Backbone"}))
    with pytest.raises(WeightsError, match=r"GPT2Backbone.*not read.*export_to_transformers"):
        load_pretrained(classifier)


def test_without_h5py_a_sentence_says_how_to_install_it(classifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(WeightsError, match=r"needs h5py: pip install 'flaxformer_lite\[keras\]'"):
        load_pretrained(classifier)


def test_bfloat16_and_several_files(tmp_path):
    folder = write(tmp_path / "gemma", "gemma")
    _, expected = load_pretrained(folder, param_dtype="bfloat16")
    arrays = STORED["gemma"]["arrays"][WEIGHTS]
    (folder / WEIGHTS).unlink()
    weight_map = {}
    for number, (path, shape) in enumerate(arrays.items()):
        name = f"model_{number % 2:05d}.weights.h5"
        weight_map[f"/{path.rpartition('/')[0]}"] = [name]
        with h5py.File(folder / name, "a") as file:
            rounded = values(path, shape).astype(ml_dtypes.bfloat16)
            made = file.create_dataset(path, data=rounded.view("V2"))
            made.attrs["dtype"] = "bfloat16"
    (folder / "model.weights.json").write_text(json.dumps({"weight_map": weight_map}))
    _, read = load_pretrained(folder, param_dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, read, expected)
