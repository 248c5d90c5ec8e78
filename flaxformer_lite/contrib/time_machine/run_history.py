"""The rows of past steps as texts, and the steps that saw a document."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.data.pipeline import open_dataset
from flaxformer_lite.model_folder import find_run_config
from flaxformer_lite.runs.batch_history import BatchHistory, source_of
from flaxformer_lite.runs.experiment import RunData
from flaxformer_lite.runs.provenance import TableOrigins
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runtime.progress import count_progress

COUNTED = 1 << 12  # positions between two updates of the progress bar


class RunHistory(BatchHistory):
    """The training rows of a run by step, as texts, and the steps that saw a document."""

    def texts(self, step: int) -> list[str]:
        """Returns the text of each row of a step."""
        return [self._text(records, row) for records, row in self.rows(step)]

    def saw(self, wanted: str, last: int) -> Iterator[tuple[int, int]]:
        """Yields the steps up to `last`, and the rows in their batches, that held a document.

        For what `wanted` may be, see `rows` in runs/provenance.py.
        """
        size = self.cfg.train.batch_size
        find = self.find
        missing = set[str]()

        @functools.cache
        def matches(records: Any) -> frozenset[int]:
            name = source_of(records)
            try:
                return frozenset(self.origins[name].rows(records, wanted).tolist())
            except ConfigError:
                missing.add(name)
                if missing != set(self.origins):  # another source may have it
                    return frozenset()
                if missing == {""}:
                    raise
                raise ConfigError(
                    f"--document={wanted}: not in the training text of"
                    f" {', '.join(sorted(missing))}, of which parts are held out; name a FILE:LINE,"
                    " as grep -n prints it."
                ) from None

        with count_progress("looking through the steps", last * size) as advance:
            for position in range(last * size):
                records, row = find(position)
                if row in matches(records):
                    yield position // size + 1, position % size
                if position % COUNTED == 0:
                    advance(COUNTED)

    def _text(self, records: Any, row: int) -> str:
        if isinstance(self.origins[source_of(records)], TableOrigins):
            return self.data.task.show(records, row)
        return " | ".join(records.tokenizer.decode(piece) for piece in records.row(row))


def open_history(folder: Path, *, allow_plugins: registry.Allowed = False) -> RunHistory:
    """Opens the data that a run was trained on, with the tokenizer that the run keeps.

    Args:
      folder: the workdir.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: the folder is no workdir, or text or tables have changed since.
    """
    cfg = read_config(folder, allow_plugins=allow_plugins)
    history = RunHistory(cfg, open_dataset(cfg))
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
    """Raises ConfigError if data differs from that of the run."""
    recorded = workdir.data_fingerprint(folder)
    if recorded and recorded != data.fingerprint:
        raise ConfigError(
            f"--workdir={folder}: the text or table has changed since the run read it ({recorded}"
            f" -> {data.fingerprint}), so its batches cannot be reconstructed; restore it."
        )


def last_step(folder: Path, cfg: ExperimentConfig) -> int:
    """Returns the last step in metrics.jsonl, or `train.steps` if it has no record yet."""
    steps = [record["step"] for record in metrics.read(folder / "metrics.jsonl")]
    return max(steps, default=0) or cfg.train.steps
