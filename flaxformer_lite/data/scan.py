"""A pass over the rows of a table: finds missing labels and texts, and hashes the inputs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.rows import RoleRow, Table, TableRows
from flaxformer_lite.data.split import hash_of, split_rows
from flaxformer_lite.data.store import map_numbers
from flaxformer_lite.objectives.tables.task import Column, Task, is_blank
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache

FORMAT = "2"  # increase when the files below change
NAMED = 5  # most rows that a message names


@dataclass(frozen=True, eq=False)
class Scan:
    """The result of a pass over a table.

    `lacking` and `blank` map a role to the number of such rows, followed by the first of their
    indices.
    """

    hashes: np.ndarray  # [rows] uint64, of the values that are not predicted
    complete: np.ndarray  # [rows] bool, whether no label or text is missing or blank
    below: int  # complete rows with a hash of at most this are held out; -1: none
    lacking: dict[str, list[int]]  # rows without a value
    blank: dict[str, list[int]]  # rows whose text is blank

    def split(self) -> dict[str, np.ndarray]:
        """Returns the indices of the complete rows of each split."""
        held = np.zeros(len(self.hashes), np.bool_)
        if self.below >= 0:
            held = self.hashes <= np.uint64(self.below)
        return {
            "train": np.flatnonzero(self.complete & ~held),
            "eval": np.flatnonzero(self.complete & held),
        }

    def check(self, read: Table, rows: TableRows, task: Task, way: str) -> None:
        """Rejects rows without a label or text.

        Args:
          read: the table.
          rows: its rows by role.
          task: says what else is doubtful about them.
          way: what to do about them, beside removing them.

        Raises:
          ConfigError: names how many there are, the first, and what else is doubtful.
        """
        faults = []
        for role, (count, *first) in self.lacking.items():
            words = [rows[row][role] for row in first]
            written = {repr(word) for word in words if isinstance(word, str) and word.strip()}
            counted = ""
            if written:
                verb = "count"
                if len(written) == 1:
                    verb = "counts"
                counted = f"; {', '.join(sorted(written))} {verb} as none (objective.missing)"
            if count == 1:
                row = read.number(first[0])
                faults.append(f"row {row} has no {role}{counted}; remove it, or {way}.")
                continue
            numbers = [f"{read.number(row):,}" for row in first]
            if count > len(first):
                numbers.append("...")
            faults.append(
                f"{count:,} of {len(read):,} rows have no {role} (rows {', '.join(numbers)})"
                f"{counted}; remove them, or {way}."
            )
        if faults:
            raise ConfigError(" ".join([f"{read.where}:", *faults, *task.doubts(rows)]))

    def remarks(self, read: Table, *, drops: bool) -> list[str]:
        """Describes rows that are dropped, or whose text is blank."""
        if drops:
            dropped = len(read) - int(np.count_nonzero(self.complete))
            if not dropped:
                return []
            return [f"{dropped:,} rows without a label or text are left out"]
        remarks = []
        for role, (count, first, *_) in self.blank.items():
            remarks.append(
                f"{count:,} rows have an empty {role}, such as row {read.number(first)};"
                " --config.data.drop_incomplete=True leaves them out"
            )
        return remarks


def scan_table(
    read: Table,
    rows: TableRows,
    task: Task,
    fraction: float,
    *,
    drops: bool,
    cached: tuple[str, str] | None,
) -> Scan:
    """Scans the rows of a table, or reads the result from the cache.

    Args:
      read: the table.
      rows: its rows by role.
      task: decides which values are missing.
      fraction: share of the rows to hold out, by a hash of their inputs; 0: none.
      drops: whether rows without a label or text are dropped.
      cached: data.cache, and a hash of what else the result depends on; None: not cached.

    Raises:
      ConfigError: too few different rows to hold out that share.
    """
    if cached is None or not read.is_stored:
        return _pass(read, rows, task, fraction, drops)

    def write(folder: Path) -> None:
        with progress.working(f"checking the rows of {read.where}"):
            result = _pass(read, rows, task, fraction, drops)
        result.hashes.tofile(folder / "hashes")
        result.complete.tofile(folder / "complete")
        record = {"below": result.below, "lacking": result.lacking, "blank": result.blank}
        (folder / "scan.json").write_text(json.dumps(record))

    root, key = cached
    parts = [FORMAT, *read.identity, fraction, drops, key]
    folder = content_cache.folder(root, f"scan-{digest_of(parts)}", write)
    return Scan(
        map_numbers(folder / "hashes", np.uint64),
        map_numbers(folder / "complete", np.bool_),
        **json.loads((folder / "scan.json").read_text()),
    )


def _pass(read: Table, rows: TableRows, task: Task, fraction: float, drops: bool) -> Scan:
    hashes = np.zeros(len(rows), np.uint64)
    complete = np.ones(len(rows), np.bool_)
    lacking: dict[str, list[int]] = {}
    blank: dict[str, list[int]] = {}
    inputs = [column for column in task.columns if not column.predicted]
    needed = [column for column in task.columns if not column.optional]
    for first, batch in rows.batches():
        for column in needed:
            role = column.role
            values = [row[role] for row in batch]
            for at in _odd_values(task, values):
                value = values[at]
                if task.is_missing(role, value):
                    problems = lacking
                elif column.predicted or not isinstance(value, str):
                    continue
                elif is_blank(value, task.missing):
                    problems = blank
                else:
                    continue
                complete[first + at] = False
                _count(problems, role, first + at)
        documents = _documents(batch, inputs)
        last = first + len(batch)
        hashes[first:last] = [hash_of((document,)) for document in documents]
    below = -1
    if fraction:
        counted = complete if drops else slice(None)
        below = split_rows(hashes[counted], fraction, read.where)
    if not drops:
        complete[:] = True
    return Scan(hashes, complete, below, _by_first_row(lacking), _by_first_row(blank))


def _odd_values(task: Task, values: Sequence[object]) -> list[int]:
    """Returns where values of a column are no texts, or texts that may count as missing.

    The task is asked about these alone, as a table has a million others. One of a user's own may
    have other rules, and is asked about all values.
    """
    rule = type(task).is_missing
    # The package's own only take fewer values for missing.
    if rule.__module__.partition(".")[0] != registry.PACKAGE:
        return list(range(len(values)))
    words = {"", *task.missing}
    odd = []
    for at, value in enumerate(values):
        if not isinstance(value, str) or value.strip() in words:
            odd.append(at)
    return odd


def _documents(rows: Sequence[RoleRow], inputs: Sequence[Column]) -> list[str]:
    """Returns the inputs of each row as JSON, whose hash decides its split."""
    as_text = json.JSONEncoder(default=str).encode
    documents = []
    for row in rows:
        values = []
        for column in inputs:
            value = row[column.role]
            if value is not None:
                values.append(as_text(value))
            elif not column.later:
                values.append("null")
        if all(row[column.role] is None for column in inputs):
            # Conversations of preferences have their prompt in what is predicted.
            values = [as_text(value) for value in row.values()]
        documents.append(f"[{', '.join(values)}]")
    return documents


def _by_first_row(problems: dict[str, list[int]]) -> dict[str, list[int]]:
    """Orders roles by the first row that has the problem."""
    return dict(sorted(problems.items(), key=lambda item: item[1][1]))


def _count(problems: dict[str, list[int]], role: str, index: int) -> None:
    numbers = problems.setdefault(role, [0])
    numbers[0] += 1
    if len(numbers) <= NAMED:
        numbers.append(index)


def count_shared(train: Scan, held: Scan) -> int:
    """Returns how many held-out rows have the same inputs as a training row."""
    known = train.hashes[train.complete]
    return int(np.isin(held.hashes[held.complete], known).sum())
