"""Tells of loss spikes with the rows that they came from, and counts updates that were left out."""

import collections
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runs.start.preflight import RunError
from flaxformer_lite.runs.watchers.watcher import Watcher
from flaxformer_lite.runtime import invocation
from flaxformer_lite.training.spikes import SIGMAS, WINDOW, is_spike

NAMED = 4  # most rows in a message; the record has all
IN_A_ROW = 16  # updates left out that end a run


class Spikes(Watcher):
    """Writes a notice and a record of each spike; ends a run of which IN_A_ROW updates in a row
    were left out.

    Args:
      workdir: the run's, for messages.
      recorder: gets {"split": "spike", "rows": [...], ...}.
      losses: those of the steps before, as an earlier start remembered them.
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
        self._losses: collections.deque[float] = collections.deque(losses, maxlen=WINDOW)
        self._left_out = 0  # in a row

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        is_left_out = bool(values.get("skipped"))
        self._left_out = self._left_out + 1 if is_left_out else 0
        if is_left_out or (
            "skipped" not in values and is_spike(np.asarray(self._losses), values["loss"], SIGMAS)
        ):
            rows = self._rows(step)
            names = ("loss", "grad_norm", "skipped")
            told = {
                name: values[name] for name in names if math.isfinite(values.get(name, math.nan))
            }
            self._recorder.add({"step": step, "split": "spike", **told, "rows": rows})
            what = "spike, so its update is left out" if is_left_out else "spike"
            said = f"loss {values['loss']:.4g}, gradient norm {values['grad_norm']:.4g}"
            self._note(
                f"notice: step {step} is a {what}: {said}; {culprits(rows, self._workdir, step)}."
            )
        if not is_left_out:
            self._losses.append(values["loss"])
        if self._left_out == IN_A_ROW:
            raise RunError(
                f"the updates of {IN_A_ROW} steps in a row were left out, up to step {step}, so the"
                " loss will not come back by itself. Try a lower optimizer.learning_rate or a"
                " larger train.skip_spikes in another --workdir;"
                f" {culprits([], self._workdir, step)}."
            )

    def remembered(self) -> dict[str, Any]:
        return {"losses": [*self._losses]}


def culprits(rows: list[str], workdir: str, step: int) -> str:
    """Names the rows of a step, the first of many, and the command that shows which of them is to
    blame."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    named = f"its rows are from {', '.join(rows[:NAMED])}{more}; " if rows else ""
    command = shlex.join(["--workdir", workdir, "--at", str(step)])
    return f"{named}{invocation.program('replay')} {command} shows the loss of each"
