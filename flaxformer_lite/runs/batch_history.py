"""The rows that the steps of a run saw, from its workdir alone: what batches are a function of is
all there."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.data.pipeline import Dataset, open_dataset
from flaxformer_lite.runs.provenance import Row, TableOrigins, TextOrigins
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runtime.progress import counting

QUICK = 1 << 30  # bytes of text that a run in progress looks through
COUNTED = 1 << 12  # positions between two signs of progress


@dataclasses.dataclass(frozen=True)
class Past:
    """The training rows of a run by step, the same for any number of processes.

    Attributes:
      cfg: the run's resolved config.
      data: its training data.
    """

    cfg: ExperimentConfig
    data: Dataset

    @functools.cached_property
    def _find(self) -> Any:
        return self.data.finder(self.cfg.seed)

    @functools.cached_property
    def _origins(self) -> dict[str, TextOrigins | TableOrigins]:
        """Where rows come from by the name of their source, which is empty outside a mixture."""
        if mixture := self.data.mixture:
            return {
                name: TextOrigins(self.cfg.data, rows.corpus)
                for name, rows in mixture.sources.items()
            }
        corpus = self.data.corpus
        return {
            "": (
                TextOrigins(self.cfg.data, corpus)
                if corpus is not None
                else TableOrigins(self.cfg.data)
            )
        }

    def rows(self, step: int) -> list[Row]:
        """Returns the rows of the whole batch of a step, counted from 1, as the records and the
        number in them.

        Raises:
          ConfigError: the run has no such step.
        """
        size = self.cfg.train.batch_size
        steps = self.cfg.train.steps
        if not 0 < step <= steps:
            raise ConfigError(f"--at={step}: the run has the steps 1 to {steps}.")
        return [self._find(position) for position in range((step - 1) * size, step * size)]

    def places(self, step: int) -> list[list[str]]:
        """Returns for each row of a step the files and lines that it came from."""
        rows = self.rows(step)
        places = dict[int, list[str]]()
        for name, origins in self._origins.items():
            own = [number for number, (records, _) in enumerate(rows) if _source(records) == name]
            places |= dict(zip(own, origins.places([rows[number] for number in own]), strict=True))
        return [places[number] for number in range(len(rows))]

    def named(self, step: int) -> list[str]:
        """Returns the places of each row of a step as one text; [] where that would take long, or
        the text is gone."""
        if sum(origins.size for origins in self._origins.values()) <= QUICK:
            with contextlib.suppress(OSError, ConfigError):
                return [", ".join(places) for places in self.places(step)]
        return []

    def texts(self, step: int) -> list[str]:
        """Returns the text of each row of a step."""
        return [self._text(records, row) for records, row in self.rows(step)]

    def saw(self, wanted: str, last: int) -> Iterator[tuple[int, int]]:
        """Yields each step up to `last`, and the row in its batch, that held a document (`rows` of
        runs/provenance.py)."""
        size = self.cfg.train.batch_size
        find = self._find
        missing = set[str]()

        @functools.cache
        def held(records: Any) -> frozenset[int]:
            name = _source(records)
            try:
                return frozenset(self._origins[name].rows(records, wanted).tolist())
            except ConfigError:
                missing.add(name)
                if missing == set(self._origins) == {""}:
                    raise
                if missing == set(self._origins):
                    raise ConfigError(
                        f"--document={wanted}: not in the training text of"
                        f" {', '.join(sorted(missing))}, of which parts are held out; name a"
                        " FILE:LINE, or words of the text."
                    ) from None
                return frozenset()

        with counting("looking through the steps", last * size) as advance:
            for position in range(last * size):
                records, row = find(position)
                if row in held(records):
                    yield position // size + 1, position % size
                if position % COUNTED == 0:
                    advance(COUNTED)

    def _text(self, records: Any, row: int) -> str:
        if isinstance(self._origins[_source(records)], TableOrigins):
            return self.data.objective.show(records, row)
        return " | ".join(records.tokenizer.decode(piece) for piece in records.row(row))


def _source(records: Any) -> str:
    return getattr(records, "source", "")


def open_past(folder: Path, *, allow_plugins: registry.Allowed = False) -> Past:
    """Opens the data of a run as it was trained on, with the tokenizer that the run keeps.

    Args:
      folder: the workdir.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: it is no workdir, or text or tables have changed since.
    """
    cfg = read_config(folder, allow_plugins=allow_plugins)
    past = Past(cfg, open_dataset(cfg))
    check_data(folder, past.data)
    return past


def read_config(folder: Path, *, allow_plugins: registry.Allowed = False) -> ExperimentConfig:
    """Reads the config of a run, to be used with its own copy of the tokenizer."""
    if not workdir.is_workdir(folder):
        raise ConfigError(
            f"--workdir={folder}: no run has written a config.json there; pass the --workdir of a"
            " run."
        )
    cfg = workdir.read_config(folder, allow_plugins=allow_plugins)
    tokenizer = dataclasses.replace(cfg.data.tokenizer, path=str(workdir.tokenizer_folder(folder)))
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, tokenizer=tokenizer))


def check_data(folder: Path, data: Dataset) -> None:
    """Refuses data that are not those of the run; raises ConfigError."""
    kept = workdir.data_fingerprint(folder)
    if kept and kept != data.fingerprint:
        raise ConfigError(
            f"--workdir={folder}: the text or table has changed since the run read it ({kept} ->"
            f" {data.fingerprint}), so its batches cannot be made again; restore it."
        )


def last_step(folder: Path, cfg: ExperimentConfig) -> int:
    """Returns the last step that metrics.jsonl records, or that of the whole run before its first
    record."""
    return (
        max((record["step"] for record in metrics.read(folder / "metrics.jsonl")), default=0)
        or cfg.train.steps
    )
