"""Directories that are not what save_pretrained leaves: links, pointers, adapters, damaged indexes
and msgpack."""

import jax
import msgpack
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.pretrained.test_refusals import copied, shard

WEIGHTS = "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 438000000\n"


@pytest.fixture
def folder(tmp_path):
    return copied("bert_masked_lm", tmp_path)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_link_that_leads_nowhere(folder, name):
    (folder / name).unlink()
    (folder / name).symlink_to("../../blobs/4d7a")
    with pytest.raises(
        WeightsError, match=rf"{name}: a link to \.\./\.\./blobs/4d7a, which is not there"
    ):
        load_pretrained(folder)


def test_a_shard_that_is_a_link_to_nowhere(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    (folder / "model-00002-of-00002.safetensors").symlink_to("gone")
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors:.*link"):
        load_pretrained(folder)


def test_links_are_followed(folder, tmp_path_factory):
    """A hub's cache is made of them."""
    due = load_pretrained(folder)[1]
    blob = tmp_path_factory.mktemp("blobs") / "4d7a"
    (folder / WEIGHTS).rename(blob)
    (folder / WEIGHTS).symlink_to(blob)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder)[1], due)


def test_a_pointer_instead_of_weights(folder):
    (folder / WEIGHTS).write_bytes(POINTER)
    with pytest.raises(WeightsError, match=r"Git LFS pointer.*git lfs pull"):
        load_pretrained(folder)


CONFIGS = {
    "empty": b"",
    "cut": b'{"model_type": "be',
    "another encoding": '{"model_type": "bert"}'.encode("utf-16"),
    "no UTF-8": b'{"_name_or_path": "caf\xe9"}',
    "nested without end": b"[" * 100_000,
    "a number of ten thousand digits": b'{"vocab_size": ' + b"1" * 10_000 + b"}",
}


@pytest.mark.parametrize("what", CONFIGS)
def test_config_that_is_no_json(folder, what):
    (folder / "config.json").write_bytes(CONFIGS[what])
    with pytest.raises(WeightsError, match=r"config.json is not JSON \("):
        load_pretrained(folder)


INDEXES = {
    "[]": "must be a JSON object",
    "{}": "weight_map that gives each tensor's file",
    '{"weight_map": [': "is not JSON",
    '{"weight_map": [1]}': r"weight_map=\[1\]: must be an object",
    '{"weight_map": {"a": 1, "b": "c"}}': "weight_map that gives each tensor's file",
    "[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("text", INDEXES)
def test_index_that_is_none(folder, text):
    (folder / WEIGHTS).rename(folder / f"{WEIGHTS}.index.json")
    (folder / f"{WEIGHTS}.index.json").write_text(text)
    with pytest.raises(WeightsError, match=INDEXES[text]):
        load_pretrained(folder)


def array(shape, dtype, data):
    return msgpack.ExtType(1, msgpack.packb([shape, dtype, data]))


MSGPACK = {
    "nothing": (b"", "not a Flax msgpack file, or truncated"),
    "a list": (msgpack.packb([1, 2]), "does not hold a tree"),
    "parameters that are a list": (msgpack.packb({"params": [1]}), "does not hold a tree"),
    "names that are numbers": (msgpack.packb({1: {2: 3}}), "1/2 is not an array"),
    "nested without end": (b"\x81\xa1a" * 100_000, "not a Flax msgpack file, or truncated"),
    "a shape larger than its bytes": (
        msgpack.packb({"a": array([2**40], "float32", b"1234")}),
        "or truncated",
    ),
    "objects": (msgpack.packb({"a": array([1], "object", b"12345678")}), "or truncated"),
}


@pytest.mark.parametrize("what", MSGPACK)
def test_damaged_msgpack(folder, what):
    data, told = MSGPACK[what]
    (folder / WEIGHTS).unlink()
    (folder / "flax_model.msgpack").write_bytes(data)
    with pytest.raises(WeightsError, match=rf"flax_model.msgpack: .*{told}"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "params/manifest.ocdbt",
            "",
            "an Orbax checkpoint of a program that has no reader.*migration",
        ),
        ("vit_b16.npz", "", "arrays of NumPy, damaged or of a program that has no reader"),
        (
            "config.json",
            '{"module": "keras_hub.src.models.bert", "class_name": "BertBackbone"}',
            r"config.json: a preset of KerasHub.*export_to_transformers\(FOLDER\)",
        ),
    ],
)
def test_other_tools_are_named(tmp_path, file, content, message):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(WeightsError, match=message):
        load_pretrained(tmp_path)
