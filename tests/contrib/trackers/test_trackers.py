"""Calls of the trackers to the libraries that they are for; doubles stand for those that are
extras."""

import sys
import types

import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from flaxformer_lite import registry
from flaxformer_lite.contrib.trackers.trackers import tensorboard, trackio, wandb
from flaxformer_lite.runs.trackers import base

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


def events(folder):
    """The events of the only file in a folder, each with a length and checksums around it."""
    (path,) = folder.glob("events.out.tfevents.*")
    content = path.read_bytes()
    while content:
        size = int.from_bytes(content[:8], "little")
        yield event_pb2.Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]


def test_tensorboard_gets_the_figures_by_step_and_drops_those_after_a_resume(tmp_path):
    tracker = tensorboard.Tracker(tmp_path, {}, 2)
    tracker.add(3, VALUES)
    version, start, *figures = events(tmp_path / "tensorboard")  # whatever ends the process now
    assert version.file_version == "brain.Event:2"
    assert start.session_log.status == event_pb2.SessionLog.START and start.step == 3
    values = [(e.summary.value[0], e.step) for e in figures]
    told = [(value.tag, value.simple_value, step) for value, step in values]
    assert told == [(name, value, 3) for name, value in VALUES.items()]
    tracker.close()


def test_tensorboard_fails_on_a_full_disk_where_a_thread_would_let_the_run_wait_for_ever(
    tmp_path, monkeypatch
):
    tracker = tensorboard.Tracker(tmp_path, {}, -1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(record_writer.RecordWriter, "write", full)
        tracker.add(3, VALUES)
    tracker.close()


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
    due = {"resume": "allow", "config": {"seed": 1}, "name": "run", "project": "flaxformer_lite"}
    due |= {"dir": str(tmp_path / "run"), "id": ids[2]}
    assert {name: calls["init"][1][name] for name in due} == due
    assert ids[0] == ids[1] != ids[2]
    assert calls["log"][0] == ({**VALUES, "step": 5},)
    assert calls["define_metric"] == (("*",), {"step_metric": "step"})
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
    due = {"name": "mine", "resume": resume, "config": {"seed": 1}}
    assert {name: options[name] for name in due} == due
    assert others == [("log", (VALUES,), {"step": 5}), ("finish", (), {})]
