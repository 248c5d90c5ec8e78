"""Runs whose length is given in passes over the training examples."""

import dataclasses

import pytest

import flaxformer_lite
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ConfigError, TrainConfig
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.training.program import with_steps
from tests.training import tiny_runs

STEPS = [(3, 100, 10, 30), (3, 105, 10, 32), (0.5, 100, 10, 5), (1.1, 10, 1, 11)]
STEPS += [(0.001, 10, 10, 1), (10, 3, 2, 15)]


@pytest.mark.parametrize(("epochs", "examples", "batch", "steps"), STEPS)
def test_steps_that_show_each_example_as_often(tmp_path, epochs, examples, batch, steps):
    cfg = tiny_runs.config(tmp_path, train={"steps": 0, "epochs": epochs, "batch_size": batch})
    assert with_steps(cfg, examples).train.steps == steps
    for most in (steps, max(1, steps - 1)):  # the last batch is not whole
        assert with_steps(cfg, examples, held=(most + 1) * batch - 1).train.steps == most


def test_a_run_of_epochs_evaluates_and_saves_after_each_and_resumes(tmp_path, capsys):
    own = {"steps": 0, "epochs": 1.5, "eval_every": 0, "checkpoint_every": 0, "log_every": 1}
    cfg = tiny_runs.config(tmp_path, train={"batch_size": 40, **own})
    lines = (tmp_path / "text.jsonl").read_text().splitlines()
    (tmp_path / "text.jsonl").write_text("\n".join(lines[:12]))
    examples = prepare_experiment(cfg).train_data.num_examples
    assert 80 < examples < 120, "2 steps and a fraction in an epoch"
    flaxformer_lite.run(cfg, tmp_path / "run")
    assert f"4 steps ({160 / examples:.2f} epochs)" in capsys.readouterr().out
    records = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "eval"] == [0, 3, 4]
    assert {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()} == {"3", "4"}
    longer = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, epochs=2))
    flaxformer_lite.run(longer, tmp_path / "run")  # as the schedule is constant
    assert "after 5 steps" in capsys.readouterr().out


def test_two_lengths_are_refused_and_neither_is_the_default():
    said = r"train.steps=30, train.epochs=3:.*length.*set one of them to 0"
    with pytest.raises(ConfigError, match=said):
        TrainConfig(steps=30, epochs=3)
    assert TrainConfig().steps == 1000 and TrainConfig(epochs=3).steps == 0


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
@pytest.mark.parametrize(
    ("flags", "due"),
    [
        (["epochs=2"], (0, 2)),
        (["epochs", "0.5"], (0, 0.5)),
        (["epochs=0"], (300, 0)),
        (["steps=7"], (7, 0)),
        ([], (300, 0)),
    ],
)
def test_the_command_line_replaces_the_length_of_the_page(flags, due):
    own = [f"--config.train.{flags[0]}", *flags[1:]] if flags else []
    train = read_experiment(command_line.config(["--config=gpt2_tiny", *own])).train
    assert (train.steps, train.epochs) == due
