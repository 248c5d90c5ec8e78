"""Runs on a mixture: the loss of each source, from the step to the report, and a resume in the
middle of a schedule."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs import batch_history
from flaxformer_lite.runs.report.meter import average_metrics
from flaxformer_lite.runs.report.metrics import read
from flaxformer_lite.runs.start import setup
from flaxformer_lite.training import program
from tests.marks import daily
from tests.objectives.tables import write_rows
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """mixed(family, train={..}, mesh=.., **data): a run on counting words and on letters."""
    folder = tmp_path_factory.mktemp("text")
    rows = []
    for start in range(60):
        letters = ["abcdefgh"[(start + step * step) % 8] * 3 for step in range(10 + start % 40)]
        rows.append({"text": f"{start} {' '.join(letters)}"})
    letters = SourceConfig(path=write_rows(folder / "letters.jsonl", rows))

    def make(family="gpt2", train=None, mesh=None, **data):
        cfg = tiny_runs.config(folder, family, train, mesh=mesh or MeshConfig(data=1))
        sources = {"words": SourceConfig(path=cfg.data.path, weight=3), "letters": letters}
        return with_data(cfg, path="", mixture=sources, **data)

    return make


def with_data(cfg, **data):
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, **data))


def metrics_of_a_step(cfg):
    experiment = setup.prepare_experiment(cfg)
    (batch,) = itertools.islice(experiment.train_batches(0), 1)
    state = tiny_runs.any_state(experiment.program)
    params = jax.device_get(state.params)
    _, metrics = experiment.program.train_step(state, batch)
    return experiment, params, jax.device_get(batch), jax.device_get(metrics)


def by_hand(experiment, params, batch, name):
    """The mean loss of the tokens of a source: an evaluation of its rows alone."""
    own = batch["targets"][f"source/{name}"]
    targets = batch["targets"] | {"weights": batch["targets"]["weights"] * own[:, None]}
    sums, _ = experiment.program.eval_step(params, {**batch, "targets": targets})
    return float(sums.metrics["nll"][0] / sums.metrics["nll"][1])


@pytest.fixture(scope="module")
def a_step(mixed):
    return metrics_of_a_step(mixed())


def test_the_loss_of_a_source_is_that_of_its_rows_alone(a_step):
    check_sources(*a_step)


@pytest.mark.nightly
def test_so_it_is_of_masked_tokens(mixed):
    check_sources(*metrics_of_a_step(mixed("bert")))


def check_sources(experiment, params, batch, metrics):
    for name in ("words", "letters"):
        np.testing.assert_allclose(
            metrics[f"loss/{name}"], by_hand(experiment, params, batch, name), rtol=1e-5
        )
    assert metrics["loss/words"] != metrics["loss/letters"]


SPLIT = {"accumulate": {"train": {"accumulate": 2}}}
SPLIT |= {"shard_map": {"mesh": MeshConfig(data=2, mode="shard_map")}}


@pytest.mark.parametrize("mode", daily(SPLIT, ("accumulate",)))
def test_it_is_the_same_over_microbatches_and_devices(mixed, a_step, mode):
    *_, metrics = metrics_of_a_step(mixed(**SPLIT[mode]))
    for name in ("loss", "loss/words", "loss/letters"):
        np.testing.assert_allclose(metrics[name], a_step[-1][name], rtol=1e-5)


def test_a_step_without_rows_of_a_source_does_not_count_for_its_mean():
    steps = [{"loss": 1.0, "loss/web": web, "loss/code": math.nan} for web in (math.nan, 2.0, 4.0)]
    assert average_metrics(steps) == {"loss": 1.0, "loss/web": 3.0}


def test_one_source_adds_nothing_to_the_step(mixed):
    def lowered(cfg):
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
        built = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
        return built.train_step.lower(built.target, built.batch).as_text()

    cfg = mixed()
    one = lowered(with_data(cfg, mixture={"words": cfg.data.mixture["words"]}))
    assert one == lowered(with_data(cfg, mixture={})) != lowered(cfg)


# batches of any restart are tested in tests/data, and the state's in test_loop.py
@pytest.mark.nightly
def test_a_run_resumes_exactly_in_the_middle_of_a_schedule(mixed, tmp_path):
    assert tiny_runs.resumes_exactly(mixed(mixture_schedule="2-6: letters=3"), tmp_path)
    runs = [read(tmp_path / name / "metrics.jsonl")[-2] for name in ("straight", "twice")]
    for name in ("loss", "loss/words", "loss/letters"):
        assert runs[0][name] == runs[1][name]


def test_a_run_that_reads_all_of_its_sources_ends_with_the_last_whole_batch(mixed):
    cfg = mixed(train={"steps": 0, "epochs": 1, "batch_size": 7})
    mixture = cfg.data.mixture
    once = {name: dataclasses.replace(source, epochs=1) for name, source in mixture.items()}
    experiment = setup.prepare_experiment(with_data(cfg, mixture=once))
    data = experiment.train_data
    steps = experiment.cfg.train.steps
    assert data.num_examples % 7 and steps == data.num_examples // 7
    assert steps == sum(1 for _ in data.batches(batch_size=7))
    assert setup.prepare_experiment(experiment.cfg).cfg == experiment.cfg, "as it is replayed"


def test_a_run_reports_each_source_and_its_past_is_known(mixed, tmp_path, capsys):
    cfg = mixed(train={"steps": 5})
    flaxformer_lite.run(cfg, tmp_path / "run")
    for record in read(tmp_path / "run" / "metrics.jsonl"):
        assert record["loss/words"] > 0 and record["loss/letters"] > 0
    printed = capsys.readouterr().out
    assert "held-out loss by source  letters " in printed
    assert "25.0% of the rows at first, " in printed
    assert "loss/letters" in (tmp_path / "run" / "report.html").read_text()
    # The rows that a step saw are found again, each in the file of its source.
    opened = batch_history.open_history(tmp_path / "run")
    batch = next(opened.data.batches(batch_size=8, seed=cfg.seed, start_step=4))
    places = opened.places(5)
    for own, is_words in zip(places, batch["targets"]["source/words"], strict=True):
        path = cfg.data.mixture["words" if is_words else "letters"].path
        assert all(place.startswith(path) for place in own)
    assert any(step == 5 for step, _ in opened.saw(places[0][0], 8))
    with pytest.raises(ConfigError, match="not in the training text of letters, words"):
        list(opened.saw("nowhere.jsonl:1", 8))
