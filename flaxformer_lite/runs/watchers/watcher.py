"""The base class of callbacks that follow a run."""

from collections.abc import Collection, Mapping

from flaxformer_lite.files.read import Json


class Watcher:
    """Callbacks of a run; override the events you need.

    They are called on every process, in the main thread. An exception that one raises ends the run.

    Attributes:
      settled_after: steps that must end before another is dispatched, so that the devices are idle
        at their `step_done` and at the next `step_begins`.
    """

    settled_after: Collection[int] = ()

    def step_begins(self, step: int) -> None:
        """Called before a step is dispatched to the devices, where earlier ones may still run."""

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        """Called when a step has ended, before it is recorded or saved.

        Args:
          step: its number; steps end in order.
          values: its metrics, such as loss and grad_norm, which may not be finite.
          seconds: time since the previous step ended, without evaluations and checkpoints; None for
            the first step, which waits for the compiler.
        """

    def recorded(self, record: Json) -> None:
        """Called with each record of metrics.jsonl: means over `log_every` steps, or an eval."""

    def evaluated(self, step: int, record: Json) -> None:
        """Called after an evaluation has been recorded and shown in report.html."""

    def saved(self, step: int) -> None:
        """Called when a checkpoint was started, which is written in the background."""

    def remembered(self) -> Json:
        """Returns state for the next start; each checkpoint's record stores it."""
        return {}

    def close(self) -> None:
        """Called when the run has ended, for any reason, after the last report.html was written."""
