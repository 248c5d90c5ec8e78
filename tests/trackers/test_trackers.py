"""What the trackers say to the libraries that they are for; doubles stand for those that are extras."""

import sys
import types

import pytest

from flaxformer_lite import registry
from flaxformer_lite.trackers import base, tensorboard, trackio, wandb

VALUES = {"train/loss": 2.5, "train/accuracy": 0.5}


class Calls:
    """A module or an object of it, that keeps what it is asked for."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **options: (self.calls.append((name, args, options)), self)[1]


@pytest.mark.parametrize("name", registry.available("trackers"))
def test_each_is_a_tracker(name):
    assert issubclass(registry.resolve("trackers", name).Tracker, base.Tracker)


def test_tensorboard_gets_the_figures_by_step(tmp_path, monkeypatch):
    tracker = tensorboard.Tracker(tmp_path, {}, -1)
    seen = []
    monkeypatch.setattr(tracker._board, "add_scalar", lambda *args: seen.append(args))
    tracker.add(3, VALUES)
    tracker.close()
    assert seen == [("train/loss", 2.5, 3), ("train/accuracy", 0.5, 3)]
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_wandb_goes_on_with_the_same_run_after_a_resume(tmp_path, monkeypatch):
    library = Calls()
    monkeypatch.setitem(sys.modules, "wandb", library)
    for variable in ("WANDB_RUN_ID", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "run").mkdir()
    ids = []
    for last_step in (-1, 4, -1):
        tracker = wandb.Tracker(tmp_path / "run", {"seed": 1}, last_step)
        tracker.add(5, VALUES)
        tracker.close()
        calls = {name: (args, options) for name, args, options in library.calls}
        ids.append(calls["init"][1]["id"])
    options = calls["init"][1]
    assert options["resume"] == "allow" and options["config"] == {"seed": 1} and options["name"] == "run"
    assert options["project"] == "flaxformer_lite" and options["dir"] == str(tmp_path / "run")
    assert ids[0] == ids[1] != ids[2]
    assert calls["log"][0] == ({**VALUES, "step": 5},) and calls["define_metric"] == (("*",), {"step_metric": "step"})
    assert library.calls[-1] == ("finish", (), {})
    monkeypatch.setenv("WANDB_RUN_ID", "sweep-7")
    wandb.Tracker(tmp_path / "run", {}, -1)
    assert (tmp_path / "run" / "wandb-id.txt").read_text() == "sweep-7"


@pytest.mark.parametrize(("last_step", "resume"), [(-1, "never"), (4, "allow")])
def test_trackio_gets_the_step(tmp_path, monkeypatch, last_step, resume):
    library = Calls()
    monkeypatch.setitem(sys.modules, "trackio", library)
    tracker = trackio.Tracker(tmp_path / "mine", {"seed": 1}, last_step)
    tracker.add(5, types.MappingProxyType(VALUES))
    tracker.close()
    (_, _, options), *others = library.calls
    assert options["name"] == "mine" and options["resume"] == resume and options["config"] == {"seed": 1}
    assert others == [("log", (VALUES,), {"step": 5}), ("finish", (), {})]
