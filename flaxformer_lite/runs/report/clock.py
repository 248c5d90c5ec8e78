"""A clock that divides the time of a run into its parts."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from flaxformer_lite.runs.report.terminal import format_clock

# A step's time: the host at work, completing its batch, waiting for the devices, for data.
STEPPING = ("steps", "completing", "devices", "data")
PARTS = {  # in the order of a summary
    "steps": "in steps",
    "completing": "completing batches",
    "data": "waiting for data",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving",
    "repeated": "in steps that a restart repeats",
    "start": "starting",
    "other": "on the rest",
}


class Clock:
    """Measures a run's time by part; nested time is charged to the innermost part.

    The first part is "start". Only the main thread may switch parts; others may read `doing`.

    Attributes:
      seconds: the time of each part of STEPPING and PARTS, up to the last switch.
      listeners: functions called with (old part, new part) at each switch.
    """

    def __init__(self):
        self.seconds: collections.Counter[str] = collections.Counter()
        self._doing = ["start"]
        self._since = time.perf_counter()
        self.listeners: list[Callable[[str, str], None]] = []

    @property
    def doing(self) -> str:
        return self._doing[-1]

    def turn_to(self, part: str) -> None:
        """Replaces the innermost part by another."""
        self._charge()
        before = self.doing
        self._doing[-1] = part
        self._notify(before)

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Charges the time in the block to a part."""
        self._charge()
        before = self.doing
        self._doing.append(part)
        self._notify(before)
        try:
            yield
        finally:
            self._charge()
            ended = self._doing.pop()
            self._notify(ended)

    def read(self) -> collections.Counter[str]:
        """Returns a copy of the seconds up to now."""
        self._charge()
        return self.seconds.copy()

    def _notify(self, before: str) -> None:
        for listener in self.listeners:
            listener(before, self.doing)

    def _charge(self) -> None:
        now = time.perf_counter()
        # typeshed counts in whole numbers
        self.seconds[self.doing] += now - self._since  # type: ignore[assignment]
        self._since = now


def merge_parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds by PARTS, where "steps" includes waiting for the devices."""
    merged = {**seconds, "steps": seconds.get("steps", 0.0) + seconds.get("devices", 0.0)}
    return {part: merged[part] for part in PARTS if merged.get(part)}


def seconds_in_steps(seconds: Mapping[str, float]) -> float:
    """Returns the time of the steps, with the waits for devices and data."""
    return sum(seconds[part] for part in STEPPING)


def goodput(seconds: Mapping[str, float]) -> float:
    """Returns the share of the time that was spent in steps."""
    return merge_parts(seconds).get("steps", 0.0) / max(sum(seconds.values()), 1e-9)


def describe_time(seconds: Mapping[str, float]) -> str:
    """Describes the total time and the shares of its parts, from half a percent on."""
    total = sum(seconds.values())
    shares = []
    for part, took in merge_parts(seconds).items():
        if took >= 0.005 * total:
            shares.append(f"{took / total:.0%} {PARTS[part]}")
    return f"{format_clock(total)}: {', '.join(shares)}"
