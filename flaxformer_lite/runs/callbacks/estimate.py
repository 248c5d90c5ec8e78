"""Estimates the duration of a long run after its first steps."""

from collections.abc import Callable, Mapping

from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.report.terminal import format_clock

LONG = 1800.0  # seconds from which on a run gets an early estimate


class Estimate(Callback):
    """Reports the remaining time once two steps are timed, before the first `train.log_every` line.

    Args:
      steps: number of steps in the run.
      note: prints one line.
    """

    def __init__(self, steps: int, note: Callable[[str], None]):
        self._steps = steps
        self._note = note
        self._timed: list[float] = []

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if seconds is None or len(self._timed) == 2:
            return
        self._timed.append(seconds)
        left = min(self._timed) * (self._steps - step)
        if len(self._timed) == 2 and left > LONG:
            self._note(
                f"notice: {self._steps - step:,} steps are left, at {min(self._timed):.3g} s each"
                f" {format_clock(left)} hours; --config.train.steps sets fewer."
            )
