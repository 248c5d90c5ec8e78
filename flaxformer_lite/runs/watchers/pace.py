"""Tells of a step that takes much longer than others, and of a process that keeps the others
waiting."""

import collections
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax

from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.watchers.watcher import Watcher
from flaxformer_lite.runtime.processes import Processes

SLOW = 10  # times the median of the last steps, from which on a step is told of
KEPT = 100  # steps of the median, and those without which there is none
FEWEST = 10
SLOWER = 2  # a process is told of at so many times the median of all, and at such a share of a step
SHARE = 0.2
TOPIC = "pace"


class Pace(Watcher):
    """Compares steps with each other, and the processes' own work on them.

    A step ends on all processes at once, as each waits for the others' devices. What tells them
    apart is how long the host was at work before that, such as on the data: a process whose host
    takes long is the one that the others wait for.

    Args:
      group: the processes; each publishes the time of its host, and process 0 compares them.
      clock: knows how long the host was at work.
    """

    def __init__(self, group: Processes, clock: Clock, note: Callable[[str], None]):
        self._group = group
        self._clock = clock
        self._note = note
        # where a dispatch may run the step, and wait for other processes
        self._inline = jax.default_backend() == "cpu"
        self._last: collections.deque[float] = collections.deque(maxlen=KEPT)
        # all may have told of the one before only
        self._told: collections.deque[list] = collections.deque(maxlen=2)
        self._steps = 0
        self._before = self._host()
        self._named = -1
        self._compared = 0
        self._interval = self._before

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        host = self._host() - self._before
        self._before = self._host()
        if seconds is None:
            self._interval = self._before
            return
        self._steps += 1
        usual = statistics.median(self._last) if len(self._last) >= FEWEST else seconds
        if seconds > SLOW * usual:
            on = "" if self._group.alone else f" on process {self._group.index}"
            # around it, as results are read when two more are dispatched
            self._note(
                f"notice: around step {step} a step took {seconds:.3g} s, {seconds / usual:.0f}"
                f" times the median of the last; {host:.3g} s of it the host was at work or waited"
                f" for data{on}."
            )
        self._last.append(seconds)

    def recorded(self, record: Mapping[str, Any]) -> None:
        if self._group.alone or record["split"] != "train" or not self._steps:
            return
        self._told.append([record["step"], (self._host() - self._interval) / self._steps])
        self._group.publish(TOPIC, list(self._told))
        self._steps = 0
        self._interval = self._host()
        told = self._group.published(TOPIC) if self._group.first else {}
        if (
            len(told) == self._group.count
        ):  # each interval is compared once, when all have told of it
            shared = set.intersection(*({step for step, _ in steps} for steps in told.values()))
            for step in sorted(step for step in shared if step > self._compared):
                self._compared = step
                self._compare({index: dict(steps)[step] for index, steps in told.items()})

    def _compare(self, hosts: Mapping[int, float]) -> None:
        """Names the process whose host was at work for longest, if that is much longer than
        others."""
        slowest = max(hosts, key=lambda index: hosts[index])
        usual = statistics.median_low(hosts.values())
        took = hosts[slowest]
        if took < max(SLOWER * usual, SHARE * statistics.mean(self._last)):
            self._named = -1
        elif slowest != self._named:
            self._named = slowest
            self._note(
                f"notice: process {slowest} keeps the others waiting: its host, which reads the"
                f" data, is at work for {took:.3g} s a step, {usual:.3g} s in the median of the"
                " processes."
            )

    def _host(self) -> float:
        seconds = self._clock.read()
        return seconds["data"] + (0.0 if self._inline else seconds["steps"])
