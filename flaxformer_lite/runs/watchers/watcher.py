"""The base class of everything that hears of a run's progress."""

from collections.abc import Collection, Mapping
from typing import Any


class Watcher:
    """Hears what a run does, on every process, in the main thread; override what it shall hear.

    An exception that a method raises ends the run.

    Attributes:
      settled_after: steps that shall end before another is dispatched, so that nothing runs when
        `step_done` hears of them, or `step_begins` of the next.
    """

    settled_after: Collection[int] = ()

    def step_begins(self, step: int) -> None:
        """Hears that a step is about to be dispatched to the devices; earlier ones may still be
        running there."""

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        """Hears that a step has ended, before anything is recorded or saved of it.

        Args:
          step: its number; steps end in order.
          values: its metrics, such as loss and grad_norm, which may not be finite.
          seconds: since the end of the step before, without evaluations and checkpoints; None of
            the first, which waits for the compiler.
        """

    def recorded(self, record: Mapping[str, Any]) -> None:
        """Hears what was added to metrics.jsonl: the means of `train.log_every` steps, or an
        evaluation."""

    def evaluated(self, step: int, record: Mapping[str, Any]) -> None:
        """Hears that an evaluation after a step is done, and recorded, and shown in report.html."""

    def saved(self, step: int) -> None:
        """Hears that a checkpoint of a step was begun; it is written in the background."""

    def remembered(self) -> dict[str, Any]:
        """Returns what the next start must know, which goes into the record of each checkpoint."""
        return {}

    def close(self) -> None:
        """Hears that the run has ended, in whatever way, after the last report.html is written."""
