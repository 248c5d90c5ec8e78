"""A trace of the steps of `train.profile`, for XProf and TensorBoard."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from flaxformer_lite.checkpoints.manager import first_line
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.storage.stores import is_url


class Profile(Callback):
    """Traces a range of steps into a folder; if that fails, the run continues with a notice.

    Args:
      folder: where the trace goes, which XProf reads; each process has its own.
      place: the folder's address, if it is in an object store.
    """

    def __init__(
        self,
        steps: range,
        folder: Path,
        clock: Clock,
        note: Callable[[str], None],
        place: Path | None = None,
    ):
        self._where = f"{folder}: xprof {folder}"
        if is_url(place):
            self._where = f"{place}: copy it to a disk for xprof"
        self._steps = steps
        self._folder = folder
        self._clock = clock
        self._note = note
        self._tracing = False
        self._done: list[int] = []
        self.settled_after = (steps.start - 1, steps.stop - 1)

    def step_begins(self, step: int) -> None:
        if step in self._steps and not self._tracing:
            with self._clock.during("other"):
                options = jax.profiler.ProfileOptions()
                options.python_tracer_level = 0  # which slows the steps that are measured
                try:
                    jax.profiler.start_trace(str(self._folder), profiler_options=options)
                    self._tracing = True
                except Exception as error:
                    self._fail(error)

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if self._tracing:
            self._done.append(step)
            if step == self._steps.stop - 1:
                self.close()

    def close(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        self._steps = range(0)
        with self._clock.during("other"):
            try:
                jax.profiler.stop_trace()
            except Exception as error:
                self._fail(error)
            else:
                steps = f"steps {self._done[0]} to {self._done[-1]}"
                self._note(f"The trace of {steps} is in {self._where}")

    def _fail(self, error: Exception) -> None:
        self._note(
            f"notice: train.profile: no trace ({first_line(error)}); the run continues without it."
        )
        self._steps = range(0)
