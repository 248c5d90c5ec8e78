"""Records the means of steps, and shows them."""

from collections.abc import Mapping

from flaxformer_lite.config import TrainConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.report import usage
from flaxformer_lite.runs.report.meter import Meter
from flaxformer_lite.runs.report.reporting import Reporting


class Records(Callback):
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
