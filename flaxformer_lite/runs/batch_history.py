"""Reconstructs the rows of any past step from the workdir.

Batches are a function of the config, the data and the step, so that nothing is logged for this.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.places import Places
from flaxformer_lite.data.records import Records
from flaxformer_lite.model_folder import find_run_config
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runs.experiment import RunData
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runtime.progress import count_progress

POSITIONS_PER_UPDATE = 1 << 12  # positions between two updates of the progress bar
Row = tuple[Records, int]  # the records, and the number of a row in them


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
    def _find(self) -> Callable[[int], Row]:
        return self.data.finder(self.cfg.seed)

    @functools.cached_property
    def _places(self) -> dict[str, Places]:
        """The places of rows by the name of their source; the name is empty outside a mixture."""
        return {name: Places(stream) for name, stream in self.data.sources.items()}

    def rows(self, step: int) -> list[Row]:
        """Returns the rows of a step's whole batch; steps count from 1.

        Raises:
          ConfigError: the run has no such step.
        """
        size = self.cfg.train.batch_size
        steps = self.cfg.train.steps
        if not 0 < step <= steps:
            raise ConfigError(f"--at={step}: the run has the steps 1 to {steps}.")
        return [self._find(position) for position in range((step - 1) * size, step * size)]

    def places(self, step: int) -> list[list[str]]:
        """Returns the files and lines of each row of a step."""
        return [
            self._places[records.source].places(records, row) for records, row in self.rows(step)
        ]

    def named(self, step: int) -> list[str]:
        """Returns the places of each row of a step as one text; [] if the data is gone."""
        with contextlib.suppress(OSError, ConfigError):
            return [", ".join(places) for places in self.places(step)]
        return []

    def texts(self, step: int) -> list[str]:
        """Returns the text of each row of a step."""
        return [self._text(records, row) for records, row in self.rows(step)]

    def saw(self, wanted: str, last: int) -> Iterator[tuple[int, int]]:
        """Yields the steps up to `last`, and the rows in their batches, that held a document.

        For what `wanted` may be, see `Places.rows`.

        Raises:
          ConfigError: no training row of any source has this place.
        """
        size = self.cfg.train.batch_size
        find = self._find

        @functools.cache
        def matches(records: Records) -> frozenset[int]:
            return frozenset(self._places[records.source].rows(records, wanted).tolist())

        sources = self.data.sources
        if not any(matches(stream.splits["train"]) for stream in sources.values()):
            names = [name or stream.source.where for name, stream in sorted(sources.items())]
            raise ConfigError(
                f"--document={wanted}: not in the training text of {', '.join(names)}, or held out;"
                " name a FILE:LINE, as grep -n prints it."
            )
        with count_progress("looking through the steps", last * size) as advance:
            for position in range(last * size):
                records, row = find(position)
                if row in matches(records):
                    yield position // size + 1, position % size
                if position % POSITIONS_PER_UPDATE == 0:
                    advance(POSITIONS_PER_UPDATE)

    def _text(self, records: Records, row: int) -> str:
        if isinstance(self.data.objective, Task):
            return self.data.task.show(records, row)
        return " | ".join(map(records.tokenizer.decode, row_ids(records, row)))


def open_history(folder: Path, *, allow_plugins: registry.Allowed = False) -> BatchHistory:
    """Opens the data that a run was trained on, with the tokenizer that the run keeps.

    Args:
      folder: the workdir.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: the folder is no workdir, or text or tables have changed since.
    """
    cfg = read_config(folder, allow_plugins=allow_plugins)
    history = BatchHistory(cfg, open_dataset(cfg))
    check_data(folder, history.data)
    return history


def read_config(folder: Path, *, allow_plugins: registry.Allowed = False) -> ExperimentConfig:
    """Reads the config of a run, with the run's copy of the tokenizer."""
    cfg = find_run_config(folder, allow_plugins=allow_plugins)
    if cfg is None:
        raise ConfigError(
            f"--workdir={folder}: no run has written a config.json there; pass the --workdir of a"
            " run."
        )
    path = str(run_inputs.tokenizer_folder(folder))
    tokenizer = dataclasses.replace(cfg.data.tokenizer, path=path)
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, tokenizer=tokenizer))


def check_data(folder: Path, data: RunData) -> None:
    """Raises ConfigError if data differs from the run's."""
    recorded = workdir.data_fingerprint(folder)
    if recorded and recorded != data.fingerprint:
        raise ConfigError(
            f"--workdir={folder}: the text or table has changed since the run read it, or this"
            f" version makes other rows of the same ({recorded} -> {data.fingerprint}), so its"
            " batches cannot be reconstructed; restore it, or take the version that began the run."
        )


def last_step(folder: Path, cfg: ExperimentConfig) -> int:
    """Returns the last step in metrics.jsonl, or `train.steps` if it has no record yet."""
    steps = [record["step"] for record in metrics.read(folder / "metrics.jsonl")]
    return max(steps, default=0) or cfg.train.steps
