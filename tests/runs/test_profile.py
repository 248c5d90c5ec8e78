"""train.profile: a trace of some steps in real runs; what is refused, and what fails."""

import shutil

import jax
import pytest

import flaxformer_lite
from flaxformer_lite.checkpoints.mirror import place_of
from flaxformer_lite.config import ConfigError, TrainConfig
from flaxformer_lite.runs.callbacks.profile import Profile
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.report.clock import Clock
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A workdir of six steps, of which the last three are traced, and its config."""
    folder = tmp_path_factory.mktemp("traced")
    cfg = tiny_runs.config(folder, train={"steps": 6, "profile": "4:6"})
    flaxformer_lite.run(cfg, folder / "run")
    return folder / "run", cfg


@pytest.mark.nightly
def test_the_steps_leave_a_trace_and_their_time_is_not_that_of_the_profiler(run):
    workdir, _ = run
    assert len(list((workdir / "profile" / "plugins" / "profile").rglob("*.xplane.pb"))) == 1
    last = metrics.read(workdir / "metrics.jsonl")[-2]
    assert last["split"] == "train" and last["seconds_other"] > 0


@pytest.mark.nightly
def test_a_run_that_goes_on_within_the_steps_traces_what_is_left(run, tmp_path, capsys):
    workdir, cfg = run
    workdir = shutil.copytree(workdir, tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints" / "6")
    flaxformer_lite.run(tiny_runs.steps(cfg, 6, profile="2:5"), workdir)
    assert "The trace of steps 5 to 5 is in " in capsys.readouterr().out


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """heard(steps of the trace, steps of the run): what a profile does and says in a run."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *args, **options: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))

    def run(traced, steps, *place):
        calls.clear()
        notes = []
        profile = Profile(traced, tmp_path, Clock(), notes.append, *place)
        for step in steps:
            profile.step_begins(step)
            profile.step_done(step, {}, 0.1)
        profile.close()
        return list(calls), notes

    return run


def test_a_profiler_that_fails_is_one_notice(heard, monkeypatch):
    def start_trace(*args, **options):
        raise RuntimeError("one at a time.")

    monkeypatch.setattr(jax.profiler, "start_trace", start_trace)
    said = "train.profile: no trace (one at a time.); the run continues without it."
    assert heard(range(2, 4), range(1, 6)) == ([], [f"notice: {said}"])


def test_a_run_that_ends_early_stops_the_trace_and_one_that_is_later_makes_none(heard):
    calls, notes = heard(range(2, 10), range(1, 4))
    assert calls == ["start", "stop"] and "The trace of steps 2 to 3 is in" in notes[0]
    assert heard(range(2, 4), range(5, 8)) == ([], [])


def test_a_trace_that_goes_to_a_store_is_said_to_be_there(heard):
    _, notes = heard(range(2, 3), range(1, 4), place_of("gs://bucket/run/profile"))
    there = "gs://bucket/run/profile: copy it to a disk for xprof"
    assert notes == [f"The trace of steps 2 to 2 is in {there}"]


@pytest.mark.parametrize("value", ["9:5", "a:b", "1:1001"])
def test_what_is_no_range_of_a_few_steps_is_refused(value):
    with pytest.raises(ConfigError, match=r"profile=.*must be START:STOP.*such as 20:29"):
        TrainConfig(profile=value)


def test_steps_beyond_the_last_are_refused():
    with pytest.raises(ConfigError, match=r"train.profile='95:101', train.steps=100:.*end"):
        TrainConfig(profile="95:101", steps=100)
    assert TrainConfig(profile="95:100", steps=100).profiled == range(95, 101)
    assert not TrainConfig().profiled
