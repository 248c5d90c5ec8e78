"""Callbacks that keep what a run makes: records of steps, checkpoints, and files in a store."""

from collections.abc import Callable, Mapping

from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.config import TrainConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.best import Selection
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.report import usage
from flaxformer_lite.runs.report.meter import Meter
from flaxformer_lite.runs.report.reporting import Reporting
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.stores import StorageError
from flaxformer_lite.training.state import TrainState


class StepRecords(Callback):
    """Records and prints the means over `train.log_every` steps."""

    def __init__(self, train: TrainConfig, meter: Meter, reporting: Reporting):
        self._train = train
        self._meter = meter
        self._reporting = reporting

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        self._meter.add(values, timed=seconds is not None)
        self._reporting.terminal.advance(step)
        is_due = step % self._train.log_every == 0 or step == self._train.steps
        if is_due and not self._meter.is_empty:
            record = self._meter.record(step) | usage.memory()
            self._reporting.recorder.add(record)
            self._reporting.terminal.train_record(record)

    def remembered(self) -> Json:
        return {"window": self._meter.window}


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


class Upload(Callback):
    """Uploads the files after each evaluation; raises RunError if another run took the lock."""

    def __init__(self, mirror: Mirror, lock: Lock | None, terminal: Terminal):
        self._mirror = mirror
        self._lock = lock
        self._terminal = terminal

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if self._lock is not None:
            self._checked(self._lock.check)

    def evaluated(self, step: int, record: Json) -> None:
        self._checked(self._mirror.send)

    def _checked(self, act: Callable[[], object]) -> None:
        try:
            act()
        except LockError as error:
            raise RunError(str(error)) from None
        except StorageError as error:  # the next checkpoint tries again, and fails if it must
            self._terminal.note(f"notice: {error}")
