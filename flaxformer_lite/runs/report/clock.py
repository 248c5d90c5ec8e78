"""A clock that divides the time of a run into its parts."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from flaxformer_lite.runs.report.terminal import clock

# parts of the time of a step: the host at work, and waiting for either
STEPPING = (
    "steps",
    "devices",
    "data",
)
PARTS = {  # in the order of a summary
    "steps": "in steps",
    "data": "waiting for data",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving",
    "repeated": "in steps that a restart repeats",
    "start": "starting",
    "other": "on the rest",
}


class Clock:
    """Counts a run's seconds by part; of nested parts the innermost counts.

    It starts with the part "start". Only the main thread may turn it; others may read what is being
    done.

    Attributes:
      seconds: those of each part of STEPPING and PARTS, up to the last turn.
      listeners: functions that are called as `(part before, new part)` when another part begins.
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
        """Begins another part in place of the innermost."""
        self._turn()
        before = self.doing
        self._doing[-1] = part
        self._notify(before)

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Counts the time in the block for a part."""
        self._turn()
        before = self.doing
        self._doing.append(part)
        self._notify(before)
        try:
            yield
        finally:
            self._turn()
            ended = self._doing.pop()
            self._notify(ended)

    def read(self) -> collections.Counter[str]:
        """Returns a copy of the seconds up to now."""
        self._turn()
        return self.seconds.copy()

    def _notify(self, before: str) -> None:
        for listener in self.listeners:
            listener(before, self.doing)

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self.doing] += now - self._since  # type: ignore[assignment]  # typeshed counts in whole numbers
        self._since = now


def parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds by PARTS: a step's work of the host and of the devices are one."""
    whole = {**seconds, "steps": seconds.get("steps", 0.0) + seconds.get("devices", 0.0)}
    return {part: whole[part] for part in PARTS if whole.get(part)}


def goodput(seconds: Mapping[str, float]) -> float:
    """Returns the share of the time that was spent in steps."""
    return parts(seconds).get("steps", 0.0) / max(sum(seconds.values()), 1e-9)


def words(seconds: Mapping[str, float]) -> str:
    """Describes the whole time and the shares of its parts, without those below half a percent."""
    whole = sum(seconds.values())
    shares = {
        PARTS[part]: took / whole for part, took in parts(seconds).items() if took >= 0.005 * whole
    }
    return f"{clock(whole)}: " + ", ".join(f"{share:.0%} {what}" for what, share in shares.items())
