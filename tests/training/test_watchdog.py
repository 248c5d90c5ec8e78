"""Stacks are printed when no step ends in time: of a thread that hangs, of a run, of two
processes."""

import dataclasses
import functools
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from flaxformer_lite.data.pipeline import Dataset
from flaxformer_lite.runtime.processes import ALONE
from flaxformer_lite.training import loop
from flaxformer_lite.training.report.clock import Clock
from flaxformer_lite.training.watchers import watchdog
from flaxformer_lite.training.watchers.watchdog import Watchdog
from tests.training import launched, tiny_runs

STALLED = Path(__file__).with_name("stalled.py")
SECONDS = 0.1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dog(tmp_path, clock):
    watcher = Watchdog(SECONDS / 60, tmp_path, ALONE, clock)
    yield watcher
    watcher.close()
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


def waits_in_a_function_of_this_name(condition=lambda: False, most=20 * SECONDS):
    end = time.monotonic() + most
    while time.monotonic() < end and not condition():
        time.sleep(SECONDS / 10)


def test_it_tells_once_for_each_step_that_does_not_end(dog, clock, tmp_path, capfd):
    stacks = tmp_path / "stacks-0.txt"

    def reports():
        return stacks.read_text().count("no step has ended for") if stacks.exists() else 0

    clock.turn_to("data")
    dog.step_done(7, {}, 0.1)
    waits_in_a_function_of_this_name(lambda: reports() == 1, most=60)
    waits_in_a_function_of_this_name(most=4 * SECONDS)
    assert reports() == 1
    clock.turn_to("devices")
    dog.step_done(8, {}, 0.1)
    waits_in_a_function_of_this_name(lambda: reports() == 2, most=60)
    written = stacks.read_text()
    said = capfd.readouterr().err
    for text in (written, said):
        first, second = text.split("no step has ended for")[1:]
        assert (
            "minutes on process 0, which waits for data; the last that has ended is step 7."
            in first
        )
        assert (
            "which is in a step; the last that has ended is step 8. Stacks of process 0:\nthread"
            " MainThread:\n" in second
        )
        assert "in waits_in_a_function_of_this_name\n" in first and "thread watchdog:\n" in first


@pytest.mark.parametrize("state", ["open", "absent", "closed"])
def test_stacks_go_where_python_writes_which_is_not_descriptor_2_of_several_processes(
    dog, clock, tmp_path, monkeypatch, state
):
    with (tmp_path / "shown").open("w") as shown:
        gone = (tmp_path / "gone").open("w")
        gone.close()
        monkeypatch.setattr(sys, "stderr", {"open": shown, "absent": None, "closed": gone}[state])
        clock.turn_to("data")
        stacks = tmp_path / "stacks-0.txt"
        waits_in_a_function_of_this_name(
            lambda: stacks.exists() and "thread watchdog:" in stacks.read_text(), most=60
        )
    assert ("Stacks of process 0:" in (tmp_path / "shown").read_text()) == (state == "open")
    assert "thread watchdog:" in stacks.read_text()


@pytest.mark.parametrize("part", ["start", "compile", "evaluation", "checkpoint", "other"])
def test_all_but_a_step_may_take_its_time(dog, clock, part, tmp_path, capfd):
    with clock.during(part):
        time.sleep(3 * SECONDS)
        assert capfd.readouterr().err == "" and not list(tmp_path.iterdir())
        dog.close()


class Group:
    """A process of several, whose announcements all hear."""

    def __init__(self, index, listeners):
        self.index = index
        self._all = listeners
        self._own = {}
        listeners.append(self._own)

    def listen(self, topic, then):
        self._own[topic] = then

    def announce(self, topic, news):
        for listeners in self._all:
            if topic in listeners:
                listeners.pop(topic)(news)


def test_all_processes_tell_what_they_do_when_one_is_late(tmp_path, clock):
    listeners = []
    dogs = []
    idle = Clock()  # of a process that evaluates while the other one hangs
    for index, one in enumerate((clock, idle)):
        dogs.append(Watchdog(SECONDS / 60, tmp_path, Group(index, listeners), one))
    texts = tmp_path / "stacks-0.txt", tmp_path / "stacks-1.txt"

    def told(times):  # stacks show lines of code, which hold these words without numbers
        return all(
            text.exists()
            and len(re.findall(r"on process 0, .*Stacks of process \d:", text.read_text())) == times
            for text in texts
        )

    clock.turn_to("steps")
    for times in (1, 2):
        dogs[0].step_done(times, {}, 0.1)
        waits_in_a_function_of_this_name(functools.partial(told, times), most=60)
        assert told(times)
    for one in dogs:
        one.close()


def test_a_disk_and_a_stderr_that_cannot_be_written_end_nothing(tmp_path, clock, monkeypatch):
    def write(*args):
        raise OSError(28, "No space left on device")

    (tmp_path / "stacks-0.txt").mkdir()
    monkeypatch.setattr(watchdog.os, "write", write)
    dog = Watchdog(SECONDS / 60, tmp_path, ALONE, clock)
    clock.turn_to("steps")
    waits_in_a_function_of_this_name(lambda: dog._told, most=60)
    dog.close()
    assert dog._told


@pytest.mark.nightly
def test_a_run_whose_data_stall_tells_of_it_and_goes_on(tmp_path, monkeypatch, capfd):
    cfg = tiny_runs.config(tmp_path, train={"steps": 16, "eval_every": 16, "checkpoint_every": 16})
    make = Dataset.example

    def stalls(self, row, seed, position, *records):
        if seed == cfg.seed and position == 14 * 8:
            time.sleep(3.0)
        return make(self, row, seed, position, *records)

    loop.run(cfg, tmp_path / "steady")
    monkeypatch.setattr(Dataset, "example", stalls)
    late = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, watchdog=1.0 / 60))
    loop.run(late, tmp_path / "late")
    out, err = capfd.readouterr()
    assert (
        "in stalls\n    time.sleep(3.0)\n" in err
        and "no step has ended for 0.0167 minutes on process 0" in err
    )
    assert re.search(
        r"notice: around step 1[3-5] a step took [\d.]+ s, \d+ times the median of the last;"
        r" ([3-9]|2\.9)",
        out,
    )
    assert (tmp_path / "late" / "stacks-0.txt").exists() and not (
        tmp_path / "steady" / "stacks-0.txt"
    ).exists()
    ends = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]
        for name in ("steady", "late")
    ]
    assert ends[0] == ends[1]


@pytest.mark.nightly
def test_of_two_processes_the_slow_one_is_named_and_both_tell_of_a_hang(tmp_path):
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
    assert (
        "notice: process 1 keeps the others waiting: its host, which reads the data, is at work"
        " for " in out
    )
    assert (
        "Stacks of process 0:" in err and "Stacks of process 1:" in other and "in slow\n" in other
    )
    for index in (0, 1):
        assert (
            f"Stacks of process {index}:" in (tmp_path / "run" / f"stacks-{index}.txt").read_text()
        )
