"""Stacks are dumped when no step ends in time: of a thread that hangs, of two processes."""

import re
import sys
import time
from pathlib import Path

import pytest

from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.watchers.watchdog import Watchdog
from tests.runs import launched

STALLED = Path(__file__).with_name("stalled.py")
SECONDS = 0.1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dog(clock):
    watcher = Watchdog(SECONDS / 60, clock)
    yield watcher
    watcher.close()


def waits_in_a_function_of_this_name():
    time.sleep(5 * SECONDS)


def dumps(capfd):
    return capfd.readouterr().err.count("in waits_in_a_function_of_this_name")


def test_a_step_that_does_not_end_is_reported_once(dog, clock, capfd):
    for part in ("data", "steps", "devices"):
        clock.turn_to(part)
        dog.step_done(7, {}, 0.1)
        waits_in_a_function_of_this_name()
        assert dumps(capfd) == 1


def test_steps_that_end_in_time_are_not_reported(dog, clock, capfd):
    clock.turn_to("steps")
    for step in range(10):
        time.sleep(SECONDS / 5)
        dog.step_done(step, {}, SECONDS / 5)
    assert "most recent call first" not in capfd.readouterr().err


def test_a_limit_beyond_what_timers_count_is_never_reached(clock, capfd):
    watcher = Watchdog(1e30, clock)
    clock.turn_to("steps")
    watcher.step_done(1, {}, 0.1)
    watcher.close()
    assert not capfd.readouterr().err


@pytest.mark.parametrize("part", ["start", "compile", "evaluation", "checkpoint", "other"])
def test_all_but_a_step_may_take_its_time(dog, clock, part, capfd):
    clock.turn_to("steps")
    with clock.during(part):
        dog.step_done(7, {}, 0.1)
        waits_in_a_function_of_this_name()
        assert not dumps(capfd)
    waits_in_a_function_of_this_name()
    assert dumps(capfd) == 1


def test_a_watchdog_that_is_closed_reports_nothing(clock, capfd):
    dog = Watchdog(SECONDS / 60, clock)
    clock.turn_to("steps")
    dog.close()
    clock.turn_to("data")
    waits_in_a_function_of_this_name()
    assert not dumps(capfd)


@pytest.mark.parametrize("state", ["absent", "closed"])
def test_a_stderr_that_cannot_be_written_ends_nothing(dog, clock, tmp_path, monkeypatch, state):
    gone = (tmp_path / "gone").open("w")
    gone.close()
    monkeypatch.setattr(sys, "stderr", {"absent": None, "closed": gone}[state])
    clock.turn_to("steps")
    dog.step_done(7, {}, 0.1)


@pytest.mark.nightly
def test_of_two_processes_the_slow_one_is_named_and_both_report_a_hang(tmp_path):
    settings = {
        "train.steps": 24,
        "train.checkpoint_every": 100,
        "train.log_every": 4,
        "train.watchdog": 2 / 60,
        "train.batch_size": 8,
    }
    flags = f"--coordinator=127.0.0.1:{launched.free_port()}", "--num_processes=2"
    started = []
    for index, stalled in enumerate((("0", "0"), ("64", "8"))):
        python, *line = launched.command(
            tmp_path, tmp_path / "run", settings, *flags, f"--process_id={index}"
        )
        started.append(launched.start([python, str(STALLED), *stalled, *line], devices=4))
    (out, err, code), (_, other, other_code) = launched.outputs(started)
    assert (code, other_code) == (0, 0), (err, other)
    slow = "notice: process 1 keeps the others waiting: its host, which reads the data, is at work"
    assert slow in out
    assert re.search(r"Timeout \(0:00:02.*\)!", err)
    assert re.search(r"Timeout \(0:00:02.*\)!", other) and " in slow\n" in other
