"""Saves checkpoints."""

from collections.abc import Callable

from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.best import Selection
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.report.reporting import Reporting
from flaxformer_lite.training.state import TrainState


class Saving(Callback):
    """Saves the state every `train.checkpoint_every` steps, and after the last one.

    Args:
      selection: the best weights, to whose step the record of a checkpoint refers.
      meta: returns the record of a checkpoint of a step.
    """

    def __init__(
        self,
        experiment: Experiment,
        checkpoints: Checkpoints,
        selection: Selection,
        meta: Callable[[int], Json],
        reporting: Reporting,
    ):
        self._experiment = experiment
        self._checkpoints = checkpoints
        self._selection = selection
        self._meta = meta
        self._reporting = reporting

    def is_due(self, step: int, ends: bool) -> bool:
        return ends or self._experiment.is_due(step, self._experiment.cfg.train.checkpoint_every)

    def act(self, step: int, state: TrainState) -> None:
        with self._reporting.working("checkpoint", "checkpoint"):
            # Processes meet in each save, so that only one may be under way; and the record refers
            # to the best weights, which must be on disk before it.
            self._selection.wait()
            saved = self._experiment.program.saved(state)
            self._checkpoints.save(step, saved, self._meta(step))

    def training_ends(self) -> None:
        with self._reporting.clock.during("checkpoint"):
            self._checkpoints.wait()
