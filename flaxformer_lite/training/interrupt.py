"""Handling of SIGTERM and ctrl-C, which end a run after a step, the same one on every process, not in the middle."""

import json
import os
import signal
import threading
from typing import NoReturn

from flaxformer_lite.runtime.processes import ALONE, Processes

TOPIC = "stop"


class Terminated(BaseException):
    """SIGTERM when there is no step to finish, or for the second time."""


def terminate(*_) -> NoReturn:
    """Handles SIGTERM by raising Terminated, which lets a run close its files."""
    raise Terminated


class Interrupt:
    """A context where the first signal is only recorded, by all processes; a second one acts as usual.

    Args:
      group: the processes.
      start: number of steps already done.

    Attributes:
      caught: "SIGTERM" or "SIGINT" once any process has received a signal, else "".
      by: the number of that process.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, group: Processes = ALONE, start: int = 0):
        self._group, self._step = group, start
        self._last: int | None = None
        self._lock = threading.Lock()
        self.caught, self.by = "", 0

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        self._group.listen(TOPIC, self._heard)
        return self

    def __exit__(self, *_) -> None:
        self._restore()

    def after(self, step: int) -> bool:
        """Returns whether the run ends after this step; call it once after each step."""
        with self._lock:
            self._step = step
            return self._last is not None and step >= self._last

    def _note(self, number: int, _frame) -> None:
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: stopping after this step; once more stops at once.\n".encode())
        self._restore()
        if self._group.alone:
            self.caught, self._last = name, 0
        else:
            self._group.announce(TOPIC, json.dumps([self._group.index, name]))

    def _heard(self, news: str) -> None:
        """Agrees on the last step, in a thread, even while the main one waits for a device. No process passes its next
        `after` until all agree; they stop one step after the latest that any has passed."""
        with self._lock:
            self._last = self._group.coordinate(TOPIC, self._step, max) + 1
            self.by, self.caught = json.loads(news)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
