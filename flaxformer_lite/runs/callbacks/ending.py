"""Callbacks that end a run, or tell why it stands still: losses, signals, steps that hang."""

import contextlib
import faulthandler
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping

from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.report.clock import STEPPING, Clock
from flaxformer_lite.runtime.processes import Processes

TIMER_PRECISION = 0.01  # share of the limit by which a timer may be early: to set it takes 0.1 ms


class Finite(Callback):
    """Raises RunError at the first step whose loss, gradient or parameters are not finite.

    Skipped updates are exempt.

    Args:
      checkpoints: the run's checkpoints.
      suspects: describes the rows of a step.
    """

    def __init__(self, checkpoints: Checkpoints, suspects: Callable[[int], str]):
        self._checkpoints = checkpoints
        self._suspects = suspects

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        names = ("param_norm",) if values.get("skipped") else ("loss", "grad_norm", "param_norm")
        if all(math.isfinite(values[name]) for name in names):
            return
        good = self._checkpoints.latest_step
        where = f"the last good checkpoint is step {good}"
        if good is None:
            where = "there is no checkpoint"
        raise RunError(
            f"not finite at step {step}: loss {values['loss']}, gradient norm"
            f" {values['grad_norm']}, parameter norm {values['param_norm']}; {where} in"
            f" {self._checkpoints.folder}. Try a lower optimizer.learning_rate, more"
            " optimizer.warmup_steps, optimizer.clip_norm=1, or train.skip_spikes=6 in another"
            f" --workdir; {self._suspects(step)}."
        )


class Interruption(Callback):
    """Lets a signal end the run after a step, from the first step on.

    Until that is compiled there is nothing to save, and a signal ends the process.

    Args:
      start: number of steps already done.
    """

    def __init__(self, interrupt: Interrupt, start: int, group: Processes):
        self._interrupt = interrupt
        self._start = start
        self._group = group
        self._training = contextlib.ExitStack()

    def step_dispatched(self, step: int) -> None:
        if step == self._start + 1:
            self._training.enter_context(self._interrupt.training(self._start, self._group))

    def ends_run(self, step: int) -> bool:
        return self._interrupt.after(step)

    def training_ends(self) -> None:
        self._training.close()

    def close(self) -> None:
        self._training.close()


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
