"""The base class of trackers, which send a run's records to another program."""

from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.files.read import Json


class Tracker:
    """Receives the records of a run on process 0; if it raises, the run continues without it.

    Args:
      workdir: the run's workdir; in an object store, only files named `tracker-*` persist between
        starts.
      config: the resolved config, as plain values.
      last_step: the step from which the run continues, -1 if it is new. Records of later steps are
        added again.
    """

    requires = ""  # the package that must be installed; for our own trackers, also the extra's name

    def __init__(self, workdir: Path, config: Json, last_step: int):
        pass

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a record with values such as train/loss and eval/loss."""

    def close(self) -> None:
        """Called when the run has ended, for any reason."""
