"""Runs on a mixture: the loss of each source, from the step to the report, and a resume in the middle of a schedule."""

import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.training import program
from flaxformer_lite.training.report.meter import means
from flaxformer_lite.training.report.metrics import read
from flaxformer_lite.training.start import setup
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """mixed(family, train={..}, mesh=.., **data): a run on counting words and on letters."""
    folder = tmp_path_factory.mktemp("text")
    letters = [
        " ".join("abcdefgh"[(start + step * step) % 8] * 3 for step in range(10 + start % 40)) for start in range(60)
    ]
    (folder / "letters.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n, text in enumerate(letters))
    )

    def make(family="gpt2", train=None, mesh=None, **data):
        cfg = tiny_runs.config(folder, family, train=train, **({"mesh": mesh} if mesh else {}))
        sources = {
            "words": SourceConfig(path=cfg.data.path, weight=3),
            "letters": SourceConfig(path=str(folder / "letters.jsonl")),
        }
        model = dataclasses.replace(cfg.model, dropout=0.0)
        return dataclasses.replace(
            cfg, data=dataclasses.replace(cfg.data, path="", mixture=sources, **data), model=model
        )

    return make


def metrics_of_a_step(cfg):
    experiment = setup.prepare(cfg)
    (batch,) = itertools.islice(experiment.train_batches(0), 1)
    state = tiny_runs.any_state(experiment)
    params = jax.device_get(state.params)
    _, metrics = experiment.train_step(state, batch)
    return experiment, params, jax.device_get(batch), jax.device_get(metrics)


def by_hand(experiment, params, batch, name):
    """The mean loss of the tokens of a source: an evaluation of its rows alone."""
    own = batch["targets"][f"source/{name}"]
    targets = batch["targets"] | {"weights": batch["targets"]["weights"] * own[:, None]}
    sums, _ = experiment.eval_step(params, {**batch, "targets": targets})
    return float(sums.metrics["nll"][0] / sums.metrics["nll"][1])


@pytest.fixture(scope="module")
def a_step(mixed):
    return metrics_of_a_step(mixed())


def test_the_loss_of_a_source_is_that_of_its_rows_alone(mixed, a_step):
    for experiment, params, batch, metrics in (a_step, metrics_of_a_step(mixed("bert"))):
        for name in ("words", "letters"):
            np.testing.assert_allclose(metrics[f"loss/{name}"], by_hand(experiment, params, batch, name), rtol=1e-5)
        assert metrics["loss/words"] != metrics["loss/letters"]


@pytest.mark.parametrize("mode", ["accumulate", "shard_map"])
def test_it_is_the_same_over_microbatches_and_devices(mixed, a_step, mode):
    split = {"train": {"accumulate": 2}} if mode == "accumulate" else {"mesh": MeshConfig(data=2, mode=mode)}
    *_, metrics = metrics_of_a_step(mixed(**split))
    for name in ("loss", "loss/words", "loss/letters"):
        np.testing.assert_allclose(metrics[name], a_step[-1][name], rtol=1e-5)


def test_a_step_without_rows_of_a_source_does_not_count_for_its_mean():
    steps = [{"loss": 1.0, "loss/web": value, "loss/code": math.nan} for value in (math.nan, 2.0, 4.0)]
    assert means(steps) == {"loss": 1.0, "loss/web": 3.0}


def test_one_source_adds_nothing_to_the_step(mixed):
    def lowered(cfg):
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
        built = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
        return built.train_step.lower(built.target, built.batch).as_text()

    cfg = mixed()
    one, none = ({"words": cfg.data.mixture["words"]}, {})
    texts = [lowered(dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, mixture=m))) for m in (one, none)]
    assert texts[0] == texts[1] != lowered(cfg)


def test_a_run_reports_each_source_and_resumes_exactly(mixed, tmp_path, capsys):
    cfg = mixed(mixture_schedule="2-6: letters=3")
    assert tiny_runs.resumes_exactly(cfg, tmp_path)
    straight, twice = (read(tmp_path / name / "metrics.jsonl") for name in ("straight", "twice"))
    for records in (straight, twice):
        for record in records:
            assert record["loss/words"] > 0 and record["loss/letters"] > 0
    names = "loss", "loss/words", "loss/letters"
    assert [straight[-2][name] for name in names] == [twice[-2][name] for name in names]
    printed = capsys.readouterr().out
    assert "held-out loss by source  letters " in printed and "of the first rows" in printed
    assert "loss/letters" in (tmp_path / "twice" / "report.html").read_text()
