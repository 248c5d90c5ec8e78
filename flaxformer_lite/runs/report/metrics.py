"""The history of a run: metrics.jsonl, samples.jsonl and collected.jsonl."""

import collections
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import Json, is_kind, parse_object, read_bytes
from flaxformer_lite.objectives.tables.breakdown import Breakdown

MAX_METRICS_BYTES = 1 << 30  # most bytes of metrics.jsonl
MAX_NAMED_LINES = 5  # most damaged lines in a notice
Record = Json  # a line of metrics.jsonl
BREAKDOWN = "breakdown.json"  # tables of the last evaluation
COLLECTED = "collected.jsonl"  # what the step of an objective recorded
STEP = re.compile(rb'{"step": (\d{1,18}), ')  # how a line of it begins
SECONDS = "seconds_"  # prefix of the time that each part took since the last record
# Recorded at the end of an interval; all other metrics are its mean.
LATEST = ("learning_rate", "param_norm")


class Recorder:
    """The run's history: one JSON object per line in metrics.jsonl; texts in samples.jsonl.

    What an objective records of the batches that it completes is in collected.jsonl.

    Args:
      last_step: records of later steps, left by a killed run, are dropped; -1 drops all.
      writes: False on all processes but one; the others only remember what they add.

    Attributes:
      folder: the workdir, where its files are written.
      history: every record of the run so far, in order.
      breakdown: the tables of the last evaluation, as {"step": 20, "tables": [[title, head, rows],
        ...]}, {} if it had none.
      samples: texts of the model at evaluations, as {"step": 20, "texts": [[title, text], ...]}.
      notices: a notice about lines of the file that could not be read.
      dropped: records of steps that a killed run took after its last checkpoint.
      dropped_collected: their batches' records, by step.
      listeners: functions that are called with each record that `add` adds.
    """

    def __init__(self, workdir: Path, last_step: int, *, writes: bool = True):
        self.folder = workdir
        self._writes = writes
        self._path = workdir / "metrics.jsonl"
        self._texts = workdir / "samples.jsonl"
        self._tables = workdir / BREAKDOWN
        self._collected = workdir / COLLECTED
        self.breakdown: Record = {}
        self.history: list[Record] = []
        self.samples: list[Record] = []
        self.dropped: list[Record] = []
        self.dropped_collected: dict[int, Record] = {}
        self.notices: list[str] = []
        self.listeners: list[Callable[[Record], None]] = []
        if not writes:
            return
        records, damaged = _read(self._path, _is_record)
        if damaged:
            lines = ", ".join(map(str, damaged[:MAX_NAMED_LINES]))
            if len(damaged) > MAX_NAMED_LINES:
                lines += f" and {len(damaged) - MAX_NAMED_LINES} more"
            self.notices.append(
                f"{self._path}: no record of a step can be read from line {lines}; dropped."
            )
        self.history = [record for record in records if record["step"] <= last_step]
        self.dropped = [record for record in records if record["step"] > last_step >= 0]
        _rewrite(self._path, self.history)
        samples, _ = _read(self._texts, _is_sample)
        self.samples = [sample for sample in samples if sample["step"] <= last_step]
        if self._texts.exists():
            _rewrite(self._texts, self.samples)
        if self._collected.exists():
            self._cut_collected(last_step)
        tables, _ = _read(self._tables, _is_breakdown)
        for table in tables:
            if table["step"] <= last_step:
                self.breakdown = table

    def add(self, record: Record) -> None:
        """Adds the record of an interval of steps or of an evaluation, and tells the listeners."""
        self.add_event(record)
        for listener in self.listeners:
            listener(record)

    def add_event(self, record: Record) -> None:
        """Adds a record that is no average, such as of a spike."""
        self.history.append(record)
        self._append(self._path, record)

    def add_sample(self, step: int, texts: list[tuple[str, str]]) -> None:
        """Records texts of an evaluation, each with a title."""
        self.samples.append({"step": step, "texts": texts})
        self._append(self._texts, self.samples[-1])

    def add_collected(self, record: Record) -> None:
        """Records a batch that an objective has completed."""
        self._append(self._collected, record)

    def _cut_collected(self, last_step: int) -> None:
        """Cuts collected.jsonl, which may be long, behind the last step, and keeps what follows."""
        end = 0
        for step, line, stop in _collected_lines(self._collected):
            if step <= last_step:
                end = stop
            else:
                self.dropped_collected[step] = parse_object(line, COLLECTED)
        os.truncate(self._collected, end)

    def write_breakdown(self, step: int, tables: Sequence[Breakdown]) -> None:
        """Replaces the tables of the evaluation before."""
        if tables:
            self.breakdown = {"step": step, "tables": [list(table) for table in tables]}
            if self._writes:
                write_file(self._tables, _line(self.breakdown).encode())

    def _append(self, path: Path, record: Record) -> None:
        if self._writes:
            with open(path, "a", encoding="utf-8") as file:
                file.write(_line(record))

    def of(self, split: str) -> list[Record]:
        """Returns the records of "train" or "eval"."""
        return [record for record in self.history if record["split"] == split]


def interval_middles(records: list[Record]) -> list[float]:
    """Returns where to plot each training record: in the middle of the steps that it averages."""
    plotted = []
    start = 0
    for record in records:
        plotted.append((start + record["step"] + 1) / 2)
        start = record["step"]
    return plotted


def sum_seconds(records: Iterable[Record]) -> collections.Counter[str]:
    """Sums the seconds of each part of the time (see `clock.PARTS`) over records."""
    total: collections.Counter[str] = collections.Counter()
    for record in records:
        for name, took in record.items():
            if name.startswith(SECONDS):
                total[name.removeprefix(SECONDS)] += took
    return total


def read(path: Path) -> list[Record]:
    """Reads the records of a metrics.jsonl; truncated and damaged lines are dropped."""
    return _read(path, _is_record)[0]


def read_collected(folder: Path, steps: Container[int]) -> dict[int, Record]:
    """Reads the records of the completed batches of some steps; those that are there."""
    records = {}
    if (folder / COLLECTED).exists():
        for step, line, _ in _collected_lines(folder / COLLECTED):
            if step in steps:
                records[step] = parse_object(line, COLLECTED)
    return records


def _collected_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Yields the step of each whole line, the line, and where it ends in the file."""
    end = 0
    with open(path, "rb") as file:
        for line in file:
            end += len(line)
            step = STEP.match(line)
            if step and line.endswith(b"\n"):  # SIGKILL may truncate the last line
                yield int(step[1]), line, end


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _rewrite(path: Path, records: list[Record]) -> None:
    write_file(path, "".join(map(_line, records)).encode())


def _read(path: Path, is_whole: Callable[[Record], bool]) -> tuple[list[Record], list[int]]:
    """Returns the records, and the numbers of the damaged lines."""
    records = []
    damaged = []
    lines = []
    if path.exists():
        lines = read_bytes(path, limit=MAX_METRICS_BYTES).split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = parse_object(line, path.name)
        except ConfigError:
            record = {}
        if is_kind(record.get("step"), int) and is_whole(record):
            records.append(record)
        elif number < len(lines):  # SIGKILL may truncate the last line
            damaged.append(number)
    return records, damaged


def _is_record(record: Record) -> bool:
    numbers = [value for name, value in record.items() if name not in ("split", "rows")]
    has_rows = is_kind(record.get("rows", []), list)
    is_named = is_kind(record.get("split"), str)
    return is_named and has_rows and all(isinstance(value, (int, float)) for value in numbers)


def _is_breakdown(record: Record) -> bool:
    return _are_rows(record.get("tables"), str, list, list)


def _is_sample(record: Record) -> bool:
    return _are_rows(record.get("texts"), str, str)


def _are_rows(rows: object, *kinds: type) -> bool:
    if not isinstance(rows, list):
        return False
    return all(isinstance(row, list) and tuple(map(type, row)) == kinds for row in rows)
