"""Stacks are dumped when no step ends in time: of a thread that hangs, of two processes."""

import re
import sys
import time
import types
from pathlib import Path

import pytest

from flaxformer_lite.runs.callbacks import ending
from flaxformer_lite.runs.callbacks.ending import Watchdog
from flaxformer_lite.runs.report.clock import Clock
from tests.runs import launched

STALLED = Path(__file__).with_name("stalled.py")
SECONDS = 0.1
PARTS = ["start", "compile", "evaluation", "checkpoint", "other"]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dog(clock):
    watcher = Watchdog(SECONDS / 60, clock)
    yield watcher
    watcher.close()


@pytest.fixture
def timer(monkeypatch):
    """Stands for faulthandler's timer and for the time: `set` lists when each one that still runs,
    or ran, was set."""
    now = types.SimpleNamespace(seconds=100.0, set=[], limit=None)

    def begin(limit, file):
        now.limit = limit
        now.set.append(now.seconds)

    def cancel():
        now.limit = None

    fake = types.SimpleNamespace(dump_traceback_later=begin, cancel_dump_traceback_later=cancel)
    monkeypatch.setattr(ending, "faulthandler", fake)
    monkeypatch.setattr(ending, "time", types.SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def hangs_in_a_function_of_this_name(begin, is_reported):
    begin()
    while not is_reported():
        time.sleep(0.01)


def test_a_step_that_does_not_end_is_reported_once(dog, clock, capfd):
    for part in ("data", "steps", "devices"):
        reports = []

        def begin(part=part):
            clock.turn_to(part)
            dog.step_done(7, {}, 0.1)

        def is_reported(reports=reports):
            reports.append(capfd.readouterr().err)
            return "most recent call first" in "".join(reports)

        hangs_in_a_function_of_this_name(begin, is_reported)
        time.sleep(2 * SECONDS)
        reports.append(capfd.readouterr().err)
        assert "".join(reports).count("in hangs_in_a_function_of_this_name") == 1


def test_each_step_that_ends_in_time_sets_the_timer_anew(timer, dog, clock):
    clock.turn_to("steps")
    for step in range(10):
        timer.seconds += SECONDS / 5
        dog.step_done(step, {}, SECONDS / 5)
    assert timer.set == pytest.approx([100 + SECONDS / 5 * step for step in range(11)])
    assert timer.limit == pytest.approx(SECONDS)


def test_a_limit_beyond_what_timers_count_is_never_reached(clock, capfd):
    watcher = Watchdog(1e30, clock)
    clock.turn_to("steps")
    watcher.step_done(1, {}, 0.1)
    watcher.close()
    assert not capfd.readouterr().err


@pytest.mark.parametrize("part", PARTS)
def test_all_but_a_step_may_take_its_time(timer, dog, clock, part):
    clock.turn_to("steps")
    with clock.during(part):
        dog.step_done(7, {}, 0.1)
        assert timer.limit is None
    assert timer.limit == pytest.approx(SECONDS)


def test_a_watchdog_that_is_closed_reports_nothing(timer, clock):
    dog = Watchdog(SECONDS / 60, clock)
    clock.turn_to("steps")
    assert timer.limit == pytest.approx(SECONDS)
    dog.close()
    assert timer.limit is None
    clock.turn_to("data")
    assert timer.limit is None


@pytest.mark.parametrize("state", ["absent", "closed"])
def test_a_stderr_that_cannot_be_written_ends_nothing(dog, clock, tmp_path, monkeypatch, state):
    gone = (tmp_path / "gone").open("w")
    gone.close()
    monkeypatch.setattr(sys, "stderr", {"absent": None, "closed": gone}[state])
    clock.turn_to("steps")
    dog.step_done(7, {}, 0.1)


@pytest.mark.nightly
def test_both_of_two_processes_report_a_hang(tmp_path):
    settings = {"train.steps": 24, "train.checkpoint_every": 100, "train.log_every": 4}
    settings |= {"train.watchdog": 2 / 60, "train.batch_size": 8}
    flags = f"--coordinator=127.0.0.1:{launched.free_port()}", "--num_processes=2"
    started = []
    for index, stalled in enumerate((("0", "0"), ("64", "8"))):
        own = (*flags, f"--process_id={index}")
        python, *line = launched.command(tmp_path, tmp_path / "run", settings, *own)
        started.append(launched.start([python, str(STALLED), *stalled, *line], devices=4))
    (_, err, code), (_, other, other_code) = launched.outputs(started)
    assert (code, other_code) == (0, 0), (err, other)
    assert re.search(r"Timeout \(0:00:02.*\)!", err)
    assert re.search(r"Timeout \(0:00:02.*\)!", other) and " in slow\n" in other
