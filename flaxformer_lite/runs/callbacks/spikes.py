"""Reports loss spikes with the rows that they came from, and counts skipped updates."""

import collections
import math
import shlex
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runtime import invocation
from flaxformer_lite.training.spikes import SPIKE_DEVIATIONS, WINDOW_UPDATES, is_spike

MAX_NAMED_ROWS = 4  # most rows in a message; the record has all
IN_A_ROW = 16  # consecutive skipped updates that end a run


class Spikes(Callback):
    """Writes a notice and a record of each spike; ends the run after IN_A_ROW skipped updates.

    Args:
      rows: describes the rows of a step.
      workdir: the run's workdir, for messages.
      recorder: receives {"split": "spike", "rows": [...], ...}.
      note: shows a notice.
      losses: the losses of the last steps, from the checkpoint.
    """

    def __init__(
        self,
        rows: Callable[[int], list[str]],
        workdir: str,
        recorder: Recorder,
        note: Callable[[str], None],
        losses: Iterable[float] = (),
    ):
        self._rows = rows
        self._workdir = workdir
        self._recorder = recorder
        self._note = note
        self._losses: collections.deque[float] = collections.deque(losses, maxlen=WINDOW_UPDATES)
        self._skipped = 0  # in a row

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        is_skipped = bool(values.get("skipped"))
        if is_skipped:
            self._skipped += 1
        else:
            self._skipped = 0
        # With train.skip_spikes the optimizer decides what a spike is.
        is_noted = is_skipped
        if "skipped" not in values:
            is_noted = bool(is_spike(np.asarray(self._losses), values["loss"], SPIKE_DEVIATIONS))
        if is_noted:
            self._report(step, values, is_skipped)
        # As in training/spikes.py, later losses are not compared with a skipped one.
        if not is_skipped:
            self._losses.append(values["loss"])
        if self._skipped == IN_A_ROW:
            raise RunError(
                f"the updates of {IN_A_ROW} steps in a row were skipped, up to step {step}, so the"
                " loss will not recover by itself. Try a lower optimizer.learning_rate or a larger"
                " train.skip_spikes in another --workdir;"
                f" {suspect_rows([], self._workdir, step)}."
            )

    def _report(self, step: int, values: Mapping[str, float], is_skipped: bool) -> None:
        rows = self._rows(step)
        record: Json = {"step": step, "split": "spike"}
        for name in ("loss", "grad_norm", "skipped"):
            if math.isfinite(values.get(name, math.nan)):
                record[name] = values[name]
        self._recorder.add_event({**record, "rows": rows})
        what = "spike"
        if is_skipped:
            what = "spike, so its update is skipped"
        figures = f"loss {values['loss']:.4g}, gradient norm {values['grad_norm']:.4g}"
        suspects = suspect_rows(rows, self._workdir, step)
        self._note(f"notice: step {step} is a {what}: {figures}; {suspects}.")

    def remembered(self) -> Json:
        return {"losses": [*self._losses]}


def suspect_rows(rows: list[str], workdir: str, step: int) -> str:
    """Names the first rows of a step, and the command that shows which of them is at fault."""
    command = shlex.join(["--workdir", workdir, "--at", str(step), "--run"])
    way_out = f"{invocation.program('steps')} {command} shows the loss of each"
    if not rows:
        return way_out
    named = ", ".join(rows[:MAX_NAMED_ROWS])
    if len(rows) > MAX_NAMED_ROWS:
        named += f" and {len(rows) - MAX_NAMED_ROWS} more"
    return f"its rows are from {named}; {way_out}"
