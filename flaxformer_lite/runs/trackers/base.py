"""The base class of trackers, which show the records of a run in another program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Gets the records of a run from process 0; where it raises, the run goes on without it.

    Args:
      workdir: the run's workdir; of one in a store, a later start finds again only files whose
        names begin with `tracker-`.
      config: the resolved config, as plain values.
      last_step: the step from which the run continues, -1 if it is new. What was tracked of later
        steps comes again.
    """

    requires = ""  # a package that must be installed; of ours, the extra that installs it as well

    def __init__(self, workdir: Path, config: Mapping[str, Any], last_step: int):
        pass

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a record, whose values are named like train/loss and eval/loss."""

    def close(self) -> None:
        """Hears that the run has ended, in whatever way."""
