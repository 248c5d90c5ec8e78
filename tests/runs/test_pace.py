"""Slow steps and slow processes are told of."""

import pytest

from flaxformer_lite.runs.callbacks.pace import FEWEST, Pace
from flaxformer_lite.runs.report.clock import Clock


class Group:
    """Processes of which this one has a number, and the others have published times of their
    hosts."""

    def __init__(self, count, index=0, **others):
        self.count = count
        self.index = index
        self.alone = count == 1
        self.first = index == 0
        self.values = {int(name[1:]): [[4, value]] for name, value in others.items()}

    def publish(self, topic, value):
        self.values[self.index] = value

    def published(self, topic):
        return dict(self.values)


@pytest.fixture
def notes():
    return []


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still: tests add the seconds."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    return Clock()


def steps(pace, clock, seconds, start=1, host=0.0):
    for step, took in enumerate(seconds, start):
        clock.seconds["data"] += host
        pace.step_done(step, {}, took)


def test_a_step_of_ten_times_the_median_is_told_of_once(notes, clock):
    pace = Pace(Group(1), clock, notes.append)
    steps(pace, clock, [None, *[0.1] * FEWEST, 0.9, 1.2, 0.1])
    assert notes == [
        f"notice: around step {FEWEST + 3} a step took 1.2 s, 12 times the median of the last; 0 s"
        " of it the host was at work or waited for data."
    ]
    steps(pace, clock, [1.5] * 60, start=100)  # another pace is usual after a while
    assert len(notes) < 60


def test_the_first_steps_are_not_compared(notes, clock):
    steps(Pace(Group(1), clock, notes.append), clock, [None, *[0.001] * (FEWEST - 1), 9.0])
    assert notes == []


def test_of_several_processes_a_slow_step_says_what_was_of_the_host(notes, clock):
    pace = Pace(Group(2, index=1), clock, notes.append)
    steps(pace, clock, [None, *[0.1] * FEWEST])
    steps(pace, clock, [2.0], start=50, host=1.5)
    assert notes[0].startswith(
        "notice: around step 50 a step took 2 s, 20 times the median of the last; 1.5 s of it "
    )
    assert notes[0].endswith(" on process 1.")


def record(pace, split="train", step=4):
    pace.recorded({"step": step, "split": split})


def test_the_process_that_keeps_others_waiting_is_named_once(notes, clock):
    group = Group(3, p1=0.9, p2=0.02)
    pace = Pace(group, clock, notes.append)
    steps(pace, clock, [None, 1.0, 1.0], host=0.01)
    record(pace, "eval")
    assert 0 not in group.values
    record(pace)
    assert group.values[0] == [[4, pytest.approx(0.01)]]
    assert notes == [
        "notice: process 1 keeps the others waiting: its host, which reads the data, is at work for"
        " 0.9 s a step, 0.02 s in the median of the processes."
    ]
    steps(pace, clock, [1.0], host=0.01)
    # process 2 has not come so far, and 4 is what all have told of
    group.values[1].append([8, 0.02])
    record(pace, step=8)
    assert len(notes) == 1
    group.values[2].append([8, 0.9])  # it is told of at once with the next
    for step, values in ((12, {1: 0.02, 2: 0.02}), (16, {1: 0.02, 2: 0.02})):
        for index, value in values.items():
            group.values[index].append([step, value])
        steps(pace, clock, [1.0], host=0.01)
        record(pace, step=step)
    assert len(notes) == 2 and "process 2 keeps" in notes[1]


@pytest.mark.parametrize(
    "others",
    [{"p1": 0.9}, {"p1": 0.9, "p2": 0.8}, {"p1": 0.1, "p2": 0.001}],
    ids=["unheard", "alike", "short"],
)
def test_nobody_is_named_where_one_has_not_told_or_all_are_alike_or_it_is_little(
    notes, clock, others
):
    pace = Pace(Group(3, **others), clock, notes.append)
    steps(pace, clock, [None, 1.0], host=0.7 if "p2" in others and others["p2"] > 0.5 else 0.001)
    record(pace)
    assert notes == []
