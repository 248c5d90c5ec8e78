"""A run's trackers: their records, and what happens where one cannot be had or fails."""

import importlib.util

import pytest

from flaxformer_lite.config import ConfigError, TrainConfig
from flaxformer_lite.runs.callbacks.tracking import Tracking, check_installed
from flaxformer_lite.runs.trackers import base

OWN = "tests.runs.test_tracking:Kept"


class Kept(base.Tracker):
    """Keeps what it gets, in `heard`, and fails at a step."""

    heard: list  # of all, as a tracker is made by name
    fails_at = None

    def __init__(self, workdir, config, last_step):
        Kept.heard = [(workdir, config, last_step)]

    def add(self, step, values):
        if step == self.fails_at:
            raise OSError("the network is down")
        self.heard.append((step, values))

    def close(self):
        self.heard.append("close")


def record(step, split="train"):
    return {"step": step, "split": split, "loss": 1.0}


def tracking(tmp_path, *names):
    notes = []
    return Tracking(names, notes.append, tmp_path, {"seed": 1}, 4), notes


def test_a_tracker_of_ones_own_gets_the_records_by_split(tmp_path):
    watcher, notes = tracking(tmp_path, OWN)
    watcher.recorded(record(5))
    watcher.recorded(record(6, "eval"))
    watcher.close()
    records = [(5, {"train/loss": 1.0}), (6, {"eval/loss": 1.0})]
    assert Kept.heard == [(tmp_path, {"seed": 1}, 4), *records, "close"]
    assert not notes


def test_one_that_fails_is_left_out_with_one_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(Kept, "fails_at", 6)
    watcher, notes = tracking(tmp_path, OWN, "tensorboard")
    for step in (5, 6, 7):
        watcher.recorded(record(step))
    watcher.close()
    assert [step for step, *_ in Kept.heard[1:]] == [5]
    assert notes == [
        f"notice: train.trackers: {OWN} failed (the network is down); the run continues without it."
    ]
    assert (tmp_path / "tensorboard").is_dir()


def test_one_that_cannot_be_opened_is_a_notice(tmp_path):
    (tmp_path / "tensorboard").touch()
    watcher, (notice,) = tracking(tmp_path, "tensorboard", OWN)
    watcher.recorded(record(5))
    assert "tensorboard failed (" in notice and len(Kept.heard) == 2


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed([*TrainConfig().trackers, OWN])  # the default needs no package
    said = r"train.trackers=\('wandb',\): wandb needs wandb; pip install 'flaxformer_lite\[w"
    with pytest.raises(ConfigError, match=said):
        check_installed(["wandb"])
    monkeypatch.setattr(Kept, "requires", "mlflow")
    with pytest.raises(ConfigError, match="needs mlflow; pip install 'mlflow'"):
        check_installed([OWN])


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        (("wandbb",), "did you mean 'wandb'"),
        ("wandb", r"trackers='wandb':.*tuple.*\('wandb',\)"),
        (("wandb", "wandb"), "must name each once"),
    ],
)
def test_names_are_those_of_plugins(trackers, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(trackers=trackers)
    assert all(TrainConfig(trackers=names).trackers == names for names in ((), (OWN,)))
