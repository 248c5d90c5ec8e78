"""Ends a run after the step in which a signal came."""

import contextlib

from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runtime.processes import Processes


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
