"""Messages between processes, with threads as processes and a dictionary as the store of
jax.distributed."""

import io
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.runtime import processes
from flaxformer_lite.runtime.processes import ALONE, Processes, differences


class Store:
    """The part of the coordination service's client that is used."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def key_value_set(self, key, value):
        with self._changed:
            if key in self._values:
                raise jax.errors.JaxRuntimeError("ALREADY_EXISTS")
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self._values[key]

    def key_value_dir_get(self, key):
        with self._changed:
            return [(k, v) for k, v in self._values.items() if k.startswith(key)]


@pytest.fixture
def together(monkeypatch):
    """Runs a function in three processes at once: what each returned, or raised."""
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.05)
    store = Store()
    groups = [Processes(store, index, 3) for index in range(3)]

    def outcome(function, group):
        try:
            return function(group)
        except ConfigError as error:
            return str(error)

    def run(function):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda group: outcome(function, group), groups))

    yield run
    run(lambda group: group.close())


def test_one_decides_for_all_each_time_anew(together):
    def twice(group):
        return [group.coordinate("topic", group.index * factor, max) for factor in (1, 10)]

    assert together(twice) == [[2, 20]] * 3
    assert ALONE.coordinate("topic", 7, max) == 7


def test_who_differs_is_named_on_all(together):
    rates = (0.1, 0.5, 0.1)
    said = together(lambda group: group.agree("facts", {"seed": 0, "rate": rates[group.index]}))
    named = r"the processes differ\. process 1 \(.*\): rate is 0\.5, elsewhere 0\.1\."
    assert re.match(rf"{named} Start all from the same", said[0]) and len(set(said)) == 1
    assert together(lambda group: group.agree("facts", {"seed": 0})) == [None] * 3


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([{"x": 1}, {"x": 2}, {"x": 2}], "process 0 (a): x is 1, elsewhere 2"),
        ([{"x": 1}, {"x": 2}], "process 1 (b): x is 2, elsewhere 1"),
        ([{"x": 1}, {"x": 2}, {"x": 3}], "process 1 (b) and 1 more: x is 2"),
        ([{"x": 1, "y": 2}, {"x": 1}], "y is 'absent'"),
        ([dict.fromkeys("abcdef", 1), dict.fromkeys("abcdef", 2)], "; and 2 more. Start all"),
    ],
)
def test_differences_are_against_the_majority_and_cut(facts, said):
    assert said in differences([list(named) for named in zip("abc", facts, strict=False)])
    assert differences([["a", {"x": 1}], ["b", {"x": 1}]]) == ""


def test_what_one_announces_all_hear_once(together):
    heard = []
    done = threading.Barrier(3)

    def listen(group):
        group.listen("topic", lambda news: heard.append((group.index, news)))
        done.wait()
        if group.index:
            group.announce("topic", "first")
        while len(heard) < 3:
            time.sleep(0.01)

    together(listen)
    assert sorted(heard) == [(0, "first"), (1, "first"), (2, "first")]


def test_process_0_says_for_whom_it_waits(together, monkeypatch):
    monkeypatch.setattr(processes, "SILENT_SECONDS", 0.1)
    printed = []
    has_printed = threading.Event()

    class Stderr(io.StringIO):
        def write(self, text):
            printed.append(text)
            has_printed.set()

    monkeypatch.setattr(sys, "stderr", Stderr())

    def late(group):
        if group.index == 0:
            while not group._client.key_value_dir_get("data/0/1"):
                time.sleep(0.01)
        if group.index == 2:
            assert has_printed.wait(600)
        return group.coordinate("data", group.index, sum)

    assert together(late) == [3] * 3
    assert "".join(printed) == "waiting for process 2: data\n"
