"""Dumps the stacks of all threads when no step ends for a long time."""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Mapping

from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.report.clock import STEPPING, Clock

TIMER_PRECISION = (
    0.01  # share of the limit by which the timer may be early: setting it takes 0.1 ms
)


class Watchdog(Callback):
    """Dumps the stacks of all threads to stderr if a step takes too long; the run continues.

    Compilations, evaluations and checkpoints have no limit. The timer is faulthandler's: it is
    native code, and fires even while a thread holds the GIL. Each process has its own; when one
    process hangs, the others wait for it in a step and dump theirs.

    Args:
      minutes: the limit of a step.
      clock: the run's clock, which knows whether a step is in progress.
    """

    def __init__(self, minutes: float, clock: Clock):
        self._limit = min(60 * minutes, threading.TIMEOUT_MAX)
        self._clock = clock
        self._set_at = -self._limit
        clock.listeners.append(self._part_begins)

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if self._clock.doing in STEPPING:
            self._set()

    def close(self) -> None:
        self._clock.listeners.remove(self._part_begins)
        faulthandler.cancel_dump_traceback_later()

    def _part_begins(self, before: str, part: str) -> None:
        if part not in STEPPING:
            faulthandler.cancel_dump_traceback_later()
            self._set_at = -self._limit
        elif before not in STEPPING:
            self._set()

    def _set(self) -> None:
        now = time.monotonic()
        if now - self._set_at < TIMER_PRECISION * self._limit:
            return
        self._set_at = now
        # There may be no stderr, or one that is closed, or no file, as in a notebook.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback_later(self._limit, file=sys.stderr)
