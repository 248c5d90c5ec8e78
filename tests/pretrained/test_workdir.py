"""A training workdir is a model directory wherever one is asked for."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import flaxformer_lite
from flaxformer_lite import (
    load_labels,
    load_pretrained,
    load_tokenizer,
    save_pretrained,
    stack_layers,
)
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.models import bert
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.text.tokenizer import load
from tests.pretrained.fixtures import outputs
from tests.training import tiny_runs

IDS = np.array([[7, 100, 104, 9]], np.int32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps of a BERT with both of its pretraining heads."""
    folder = tmp_path_factory.mktemp("run")
    model = bert.config("tiny", **tiny_runs.SIZES, encoder_layers=2, max_length=32)
    cfg = tiny_runs.config(folder, "bert", train={"steps": 2, "checkpoint_every": 1}, model=model)
    flaxformer_lite.run(cfg, folder / "run")
    return folder / "run"


def equal(tree, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(tree), jax.device_get(other))


def test_the_newest_checkpoint_in_the_dtype_and_layout_asked_for(run):
    stored = workdir.read_run(run)
    model, params = load_pretrained(run)
    assert stored.step == 2 and model.cfg == stored.cfg.model and model.cfg.head == "pretraining"
    equal(params, stored.params)
    scanned, stacked = load_pretrained(run, scan=True, dropout=0.0)
    assert scanned.cfg.scan and scanned.cfg.dropout == 0
    equal(stacked, stack_layers(stored.params))
    half = load_pretrained(run, dtype="bfloat16")[1]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half)} == {"bfloat16"}


def test_on_a_mesh(run):
    mesh: Mesh = build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    params = load_pretrained(run, mesh=mesh)[1]
    assert all(leaf.sharding.mesh == mesh for leaf in jax.tree.leaves(params))
    equal(params, workdir.read_run(run).params)


def test_a_head_that_the_run_has_and_one_that_it_lacks(run):
    due = outputs(*load_pretrained(run), {"input_ids": IDS}).prediction_logits
    got = outputs(*load_pretrained(run, "masked_lm"), {"input_ids": IDS}).logits
    np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        WeightsError,
        match=r"head='sequence_classification' needs classifier.*has not trained; its head is",
    ):
        load_pretrained(run, "sequence_classification")
    with pytest.raises(ConfigError, match="head='lm': no such head; bert has "):
        load_pretrained(run, "lm")
    with pytest.raises(ConfigError, match=r"d_model: comes from config.json"):
        load_pretrained(run, d_model=3)


def test_its_tokenizer_frames_a_text_as_in_training(run):
    tokenizer = load_tokenizer(run)
    inner = load(run / "tokenizer")
    assert tokenizer("a")["input_ids"].tolist() == [
        [inner.cls_id, *inner.encode("a"), inner.sep_id]
    ]


def test_what_it_is_like_goes_along(run, tmp_path):
    model, params = load_pretrained(run)
    save_pretrained(tmp_path / "again", model, params)
    save_pretrained(tmp_path / "like", dataclasses.replace(model, source=""), params, like=run)
    for folder in (tmp_path / "again", tmp_path / "like"):
        equal(load_pretrained(folder)[1], params)
        assert (
            load_tokenizer(folder)("a")["input_ids"].tolist()
            == load_tokenizer(run)("a")["input_ids"].tolist()
        )


def test_a_damaged_checkpoint_is_said(run, tmp_path, caplog):
    copy = shutil.copytree(run, tmp_path / "copy")
    for file in (copy / "checkpoints" / "2" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    _, params = load_pretrained(copy)
    assert "checkpoint of step 2 cannot be read" in caplog.text and "step 1 is used" in caplog.text
    assert jax.tree.leaves(params)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", r"config.json:.*not what the run"),
        ("tokenizer/tokenizer.bytes", r"tokenizer:.*not what the run"),
    ],
)
def test_a_changed_input_is_said(run, tmp_path, name, message):
    shutil.copytree(run, tmp_path / "run")
    text = (tmp_path / "run" / name).read_text()
    (tmp_path / "run" / name).write_text(
        text.replace("32", "16", 1) if name == "config.json" else text + " "
    )
    with pytest.raises(ConfigError, match=message):
        save_pretrained(tmp_path / "out", *load_pretrained(tmp_path / "run"))
    assert not (tmp_path / "out").exists()


def test_weights_are_not_saved_over_a_run_nor_a_run_over_weights(run, tmp_path):
    model, params = load_pretrained(run)
    with pytest.raises(ConfigError, match="run: is a training workdir"):
        save_pretrained(run, model, params)
    save_pretrained(tmp_path / "out", model, params)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(RunError, match=r"out: holds a config.json.*no run"):
        flaxformer_lite.run(workdir.read_config(run), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_names_of_classes(run, tmp_path):
    model, params = load_pretrained(run)
    save_pretrained(tmp_path / "named", model, params, labels=["no", "yes"])
    assert load_labels(tmp_path / "named") == ["no", "yes"]
    assert json.loads((tmp_path / "named" / "config.json").read_text())["label2id"] == {
        "no": 0,
        "yes": 1,
    }
    save_pretrained(tmp_path / "loaded", *load_pretrained(tmp_path / "named"))
    assert load_labels(tmp_path / "loaded") == ["no", "yes"], "they go along"
    assert load_labels(run) == ["LABEL_0", "LABEL_1"]
    for wrong in (["one"], ["same", "same"]):
        with pytest.raises(ConfigError, match=r"labels=\[.*the model has 2 classes;.*give.*name"):
            save_pretrained(tmp_path / "wrong", model, params, labels=wrong)
    (tmp_path / "named" / "config.json").write_text('{"id2label": {"one": "no"}}')
    with pytest.raises(ConfigError, match=r"id2label=.*a name for each of 0, 1, 2"):
        load_labels(tmp_path / "named")
