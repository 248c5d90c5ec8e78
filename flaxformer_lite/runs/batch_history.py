"""Reconstructs the rows of any past step from the workdir.

Batches are a function of the config, the data and the step, so that nothing is logged for this.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.runs.experiment import RunData
from flaxformer_lite.runs.provenance import TableOrigins, TextOrigins

QUICK = 1 << 30  # most bytes of text that a run in progress looks through
Row = tuple[Any, int]  # the records, and the number of a row in them


@dataclasses.dataclass(frozen=True)
class BatchHistory:
    """The training rows of a run by step; they are the same for any number of processes.

    Attributes:
      cfg: the run's resolved config.
      data: its training data.
    """

    cfg: ExperimentConfig
    data: RunData

    @functools.cached_property
    def find(self) -> Callable[[int], Row]:
        """Finds the row at a position of the training stream."""
        return self.data.finder(self.cfg.seed)

    @functools.cached_property
    def origins(self) -> dict[str, TextOrigins | TableOrigins]:
        """The origins of rows by the name of their source; the name is empty outside a mixture."""
        mixture = self.data.mixture
        if mixture:
            origins: dict[str, TextOrigins | TableOrigins] = {}
            for name, rows in mixture.sources.items():
                origins[name] = TextOrigins(self.cfg.data, rows.corpus)
            return origins
        if self.data.corpus is not None:
            return {"": TextOrigins(self.cfg.data, self.data.corpus)}
        return {"": TableOrigins(self.cfg.data)}

    def rows(self, step: int) -> list[Row]:
        """Returns the rows of a step's whole batch; steps count from 1.

        Raises:
          ConfigError: the run has no such step.
        """
        size = self.cfg.train.batch_size
        steps = self.cfg.train.steps
        if not 0 < step <= steps:
            raise ConfigError(f"--at={step}: the run has the steps 1 to {steps}.")
        return [self.find(position) for position in range((step - 1) * size, step * size)]

    def places(self, step: int) -> list[list[str]]:
        """Returns the files and lines of each row of a step."""
        return [
            self.origins[source_of(records)].places(records, row)
            for records, row in self.rows(step)
        ]

    def named(self, step: int) -> list[str]:
        """Returns the places of each row of a step as one text.

        [] if that would take long, or the data is gone.
        """
        if sum(origins.size for origins in self.origins.values()) <= QUICK:
            with contextlib.suppress(OSError, ConfigError):
                return [", ".join(places) for places in self.places(step)]
        return []


def source_of(records: object) -> str:
    """Returns the name of the source of records; "" outside a mixture."""
    return getattr(records, "source", "")
