"""The base class of callbacks, which follow the steps of a trainer."""

from collections.abc import Collection, Mapping

from flaxformer_lite.files.read import Json
from flaxformer_lite.training.state import TrainState


class Callback:
    """Follows a run; override the events you need.

    They are called on every process, in the main thread. An exception that one raises ends the run.

    Attributes:
      settled_after: steps that must end before another is dispatched, so that the devices are idle
        at their `step_done` and at the next `step_begins`.
    """

    settled_after: Collection[int] = ()

    def training_begins(self, step: int, state: TrainState) -> None:
        """Called before the first step, with the state after `step` earlier ones."""

    def step_begins(self, step: int) -> None:
        """Called before a step is dispatched to the devices, where earlier ones may still run."""

    def step_dispatched(self, step: int) -> None:
        """Called when the devices have a step; by the first, it has been compiled."""

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        """Called when a step has ended, before it is recorded or saved.

        Args:
          step: its number; steps end in order.
          values: its metrics, such as loss and grad_norm, which may not be finite.
          seconds: time since the previous step ended, without evaluations and checkpoints; None for
            the first step, which waits for the compiler.
        """

    def is_due(self, step: int, ends: bool) -> bool:
        """Returns whether to call `act` after this step.

        Args:
          step: a step that has been dispatched.
          ends: whether the run ends after it, as far as the callbacks before this one know.
        """
        return False

    def act(self, step: int, state: TrainState) -> None:
        """Called after a step that `is_due`, once it has ended, with the state that it led to.

        The next step may donate the state: copy what you keep.
        """

    def ends_run(self, step: int) -> bool:
        """Returns whether the run ends after this step; called once for each."""
        return False

    def training_ends(self) -> None:
        """Called after the last step, but not after an error."""

    def recorded(self, record: Json) -> None:
        """Called with each record of metrics.jsonl: means over `log_every` steps, or an eval."""

    def evaluated(self, step: int, record: Json) -> None:
        """Called after an evaluation has been recorded."""

    def remembered(self) -> Json:
        """Returns state for the next start; each checkpoint's record stores it."""
        return {}

    def close(self) -> None:
        """Called when the run has ended, for any reason, after the last report.html was written."""
