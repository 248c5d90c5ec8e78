"""Reports slow steps, and processes that keep the others waiting."""

import collections
import statistics
from collections.abc import Callable, Mapping

import jax

from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runtime.processes import Processes

SLOW = 10  # a step is reported at this multiple of the median of the last steps
KEPT = 100  # most steps in that median
FEWEST = 10  # least steps in that median
SLOWER = 2  # a process is reported at this multiple of the median of all processes, and
SHARE = 0.2  # at this share of a step
TOPIC = "pace"


class Pace(Callback):
    """Compares the durations of steps, and the host time of processes.

    A step ends on all processes at once, as each waits for the others' devices. They differ in how
    long the host works before that, such as on the data: the process with the slowest host is the
    one that the others wait for.

    Args:
      group: the processes; each publishes its host time, and process 0 compares them.
      clock: measures the host time.
    """

    def __init__(self, group: Processes, clock: Clock, note: Callable[[str], None]):
        self._group = group
        self._clock = clock
        self._note = note
        # where a dispatch may run the step, and wait for other processes
        self._inline = jax.default_backend() == "cpu"
        self._last: collections.deque[float] = collections.deque(maxlen=KEPT)
        # two intervals, as other processes may be one behind
        self._published: collections.deque[list] = collections.deque(maxlen=2)
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
        usual = seconds
        if len(self._last) >= FEWEST:
            usual = statistics.median(self._last)
        if seconds > SLOW * usual:
            on = ""
            if not self._group.alone:
                on = f" on process {self._group.index}"
            # around it, as results are read when two more are dispatched
            self._note(
                f"notice: around step {step} a step took {seconds:.3g} s, {seconds / usual:.0f}"
                f" times the median of the last; {host:.3g} s of it the host was at work or waited"
                f" for data{on}."
            )
        self._last.append(seconds)

    def recorded(self, record: Json) -> None:
        if self._group.alone or record["split"] != "train" or not self._steps:
            return
        self._published.append([record["step"], (self._host() - self._interval) / self._steps])
        self._group.publish(TOPIC, list(self._published))
        self._steps = 0
        self._interval = self._host()
        if self._group.first:
            self._compare_new(self._group.published(TOPIC))

    def _compare_new(self, published: Mapping[int, list]) -> None:
        """Compares each interval once, when all processes have published it."""
        if len(published) < self._group.count:
            return
        hosts = {index: dict(intervals) for index, intervals in published.items()}
        shared = set.intersection(*map(set, hosts.values()))
        for step in sorted(shared):
            if step > self._compared:
                self._compared = step
                self._compare({index: intervals[step] for index, intervals in hosts.items()})

    def _compare(self, hosts: Mapping[int, float]) -> None:
        """Reports the process with the slowest host, if it is much slower than the others."""
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
        if self._inline:
            return seconds["data"]
        return seconds["data"] + seconds["steps"]
