"""An objective from outside the package, trained by the command line's own path; no file of the core knows of it."""

import json

import jax
import numpy as np
import pytest

from examples import classification
from examples.classification import Classification
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict, plugin_name, to_config_dict
from flaxformer_lite.data.pipeline import open_dataset
from flaxformer_lite.training import loop
from flaxformer_lite.training.report import metrics

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # of ml_collections

SMALL = {
    "objective.name": "examples.classification:Classification", "objective.label_smoothing": 0.1,
    "model.head": "sequence_classification", "model.d_model": 32, "model.num_heads": 2, "model.mlp_dim": 64,
    "model.encoder_layers": 1, "model.vocab_size": 0, "data.tokenizer.vocab_size": 420, "data.length": 24,
    "data.eval_fraction": 0.2, "train.batch_size": 32, "train.eval_every": 40, "train.log_every": 10,
    "train.checkpoint_every": 20, "optimizer.schedule": "constant", "optimizer.learning_rate": 1e-2,
    "optimizer.warmup_steps": 5, "mesh.data": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "weather.jsonl"
    classification.main(path)
    return path


def experiment(text, **changes):
    values = SMALL | {"data.path": text, "data.cache": text.parent / "cache"} | changes
    page = command_line.config(
        ["--config=configs/bert_tiny.py", *(f"--config.{name}={value}" for name, value in values.items())]
    )
    return from_config_dict(ExperimentConfig, page)


def test_it_learns_resumes_and_is_measured_against_the_majority(text, tmp_path, capsys):
    loop.run(experiment(text, **{"train.steps": 10}), tmp_path)
    loop.run(experiment(text, **{"train.steps": 30}), tmp_path)
    evals = [record for record in metrics.read(tmp_path / "metrics.jsonl") if record["split"] == "eval"]
    assert evals[-1]["step"] == 30 and evals[-1].keys() == {"step", "split", "loss", "accuracy"}
    assert evals[-1]["accuracy"] > 0.95
    said = capsys.readouterr().out
    assert "held-out accuracy" in said and "majority class" in said and "perplexity" not in said
    assert "step 30/30  held out: accuracy" in said and "step 30/30  accuracy" in said
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    assert workdir.read_config(tmp_path).objective == Classification(label_smoothing=0.1)


def test_examples_carry_the_label_of_their_text(text):
    data = open_dataset(experiment(text))
    due = {record["text"]: record["label"] for record in map(json.loads, text.read_text().splitlines())}
    for row in range(20):
        example = data.example(row, 0, row)
        ids = example["inputs"]["input_ids"][example["inputs"]["attention_mask"] > 0]
        assert ids[0] == data.tokenizer.cls_id and ids[-1] == data.tokenizer.sep_id
        said = data.tokenizer.decode(ids[1:-1].tolist())
        assert [label for whole, label in due.items() if whole.startswith(said)] == [example["targets"]["label"]]
    labels = {split: data.splits[split].numbers["label"] for split in ("train", "eval")}
    assert sum(map(len, labels.values())) == len(due)
    kind = np.mean(labels["eval"])
    assert experiment(text).objective.baseline(data) == ("majority class", pytest.approx(kind))


def test_the_loss_is_the_cross_entropy_with_smoothed_labels():
    rng = np.random.default_rng(0)
    logits, label, weight = (
        rng.normal(size=(5, 3)).astype("f"),
        rng.integers(0, 3, 5, np.int32),
        np.float32([1, 1, 0, 1, 1]),
    )
    sums = Classification(label_smoothing=0.3).loss(logits, {"label": label, "weights": weight}, chunks=1)
    wanted = 0.7 * np.eye(3)[label] + 0.1
    due = -(wanted * np.log(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))).sum(1)
    np.testing.assert_allclose(sums.mean(), (due * weight).sum() / 4, rtol=1e-5)
    right = ((logits.argmax(1) == label) * weight).sum() / 4
    np.testing.assert_allclose(Classification().metrics(jax.device_get(sums))["accuracy"], right, rtol=1e-6)


def test_a_label_without_logits_is_refused(text, tmp_path):
    (tmp_path / "three.jsonl").write_text(text.read_text().replace('"label": 0', '"label": 2'))
    with pytest.raises(ConfigError, match=r"there is a label 2, but model.num_labels=2.*set model.num_labels"):
        open_dataset(experiment(text, **{"data.path": tmp_path / "three.jsonl"}))


def test_its_name_survives_the_round_trip(text):
    cfg = experiment(text)
    assert plugin_name(cfg.objective) == "examples.classification:Classification"
    assert from_config_dict(ExperimentConfig, to_config_dict(cfg)) == cfg
