"""Where a run reports: its records, its terminal, and the measures of its time."""

import contextlib
import dataclasses
from collections.abc import Iterator

from flaxformer_lite.analysis.recompiles import RecompileCounter
from flaxformer_lite.checkpoints.manager import first_line
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runs.report.terminal import Terminal


@dataclasses.dataclass(frozen=True)
class Reporting:
    """The outputs and measures that the callbacks of a run share.

    Attributes:
      recorder: writes metrics.jsonl and samples.jsonl.
      terminal: prints.
      clock: divides the time of the run into parts.
      compiles: counts compilations after the second step.
    """

    recorder: Recorder
    terminal: Terminal
    clock: Clock
    compiles: RecompileCounter
    _failed: set[str] = dataclasses.field(default_factory=set)

    @contextlib.contextmanager
    def working(self, part: str, work: str) -> Iterator[None]:
        """Charges the block to a part of the time; the first block of its work may compile."""
        with self.clock.during(part), self.compiles.allow_first(work):
            yield

    @contextlib.contextmanager
    def optional(self, what: str) -> Iterator[None]:
        """Lets the run continue if the block fails; notifies the user once."""
        try:
            yield
        except Exception as error:
            if what not in self._failed:
                self.terminal.note(
                    f"notice: {what} cannot be written ({first_line(error)}); the run continues"
                    " without it."
                )
            self._failed.add(what)
