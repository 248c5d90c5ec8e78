"""The rows of a table, in a store, with the file and line of each, and their values by role.

A row is its JSON: a million rows lie one after another in one array of bytes, and are made when
they are asked for. JSON rather than pickle, as a cache may be shared with others, and nothing that
they write may run here. What JSON lacks, such as a date, is kept as its text.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import digests, store, store_writer
from flaxformer_lite.data.source import Source, SourceRow, open_source
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.data.store_writer import Part, StoreWriter
from flaxformer_lite.objectives.rows import ClassNames, Encoded, StoredColumn
from flaxformer_lite.runtime import progress

FORMAT = "7"  # increase when the rows that are read from a file change
SMALL_BYTES = 1 << 20  # of files whose rows stay in memory
COLUMNS = {  # of the store
    "json": StoredColumn("uint8"),
    "file": StoredColumn("int32", ()),
    "line": StoredColumn("int64", ()),
}
END = ",\n"  # behind each row, so that neighbors are the inside of a list
MAX_HELD_ROWS = 1 << 8  # before they are handed to the store
MAX_HELD_BYTES = 1 << 22  # of these rows
MAX_BATCH_ROWS = 1 << 12  # that are read at a time
MAX_BATCH_BYTES = 1 << 26  # of these rows, unless one has more
NUMBERS = 1 << 16  # row numbers hashed at a time
TableRow = dict[str, Any]  # the values of a row by column
RoleRow = dict[str, Any]  # or by role


class TableRows(Sequence[TableRow]):
    """Rows of a table, which are made when they are asked for.

    Attributes:
      store: has the JSON of each row.
      names: the column of each role, None where the table has none; the rows are then by role.
    """

    def __init__(
        self,
        store: TokenStore,
        numbers: np.ndarray | None = None,
        names: dict[str, str | None] | None = None,
    ):
        self.store = store
        self.names = names
        self._numbers = numbers  # of these rows in the store; None: it has no others
        self._text = store.values("json")
        self._offsets = store.offsets("json")

    def __len__(self) -> int:
        return len(self.store) if self._numbers is None else len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> TableRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[TableRow]: ...

    def __getitem__(self, index: int | slice) -> TableRow | list[TableRow]:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return self._read(self._in_store(np.array(chosen, np.int64)))
        return self._read(self._in_store(np.array([chosen])))[0]

    def __iter__(self) -> Iterator[TableRow]:
        for _, rows in self.batches():  # faster than one row at a time
            yield from rows

    def batches(
        self,
        chosen: range | None = None,
        *,
        max_rows: int = MAX_BATCH_ROWS,
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> Iterator[tuple[int, list[TableRow]]]:
        """Yields neighboring rows, each time with the number of the first.

        Args:
          chosen: the numbers of the rows; None for all.
          max_rows: most rows at a time.
          max_bytes: most bytes of JSON at a time, unless a row has more.
        """
        if chosen is None:
            chosen = range(len(self))
        first = chosen.start
        while first < chosen.stop:
            numbers = self._in_store(np.arange(first, min(first + max_rows, chosen.stop)))
            sizes = np.cumsum(self._offsets[numbers + 1] - self._offsets[numbers])
            count = max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
            yield first, self._read(numbers[:count])
            first += count

    def take(self, numbers: np.ndarray) -> "TableRows":
        """Returns the rows with these numbers, from 0."""
        return TableRows(self.store, self._in_store(numbers), self.names)

    def origin(self, row: int) -> tuple[int, int]:
        """Returns the number of a row's file, and its line there, or its number."""
        number = row if self._numbers is None else int(self._numbers[row])
        return int(self.store.values("file")[number]), int(self.store.values("line")[number])

    def find(self, files: Sequence[int], line: int) -> np.ndarray:
        """Returns the rows of a line in any of some files, ascending."""
        found = self.store.values("line") == line
        found &= np.isin(self.store.values("file"), files)
        return np.flatnonzero(found if self._numbers is None else found[self._numbers])

    def by_role(self, names: dict[str, str | None]) -> "TableRows":
        """Returns the rows with their values by role; `names` has the column of each."""
        return TableRows(self.store, self._numbers, names)

    def with_columns(self, row: int) -> TableRow:
        """Returns the values of a row by column and by role."""
        plain = TableRows(self.store, self._numbers)[row]
        return {**plain, **_role_row(plain, self.names or {})}

    def _in_store(self, numbers: np.ndarray) -> np.ndarray:
        return numbers if self._numbers is None else self._numbers[numbers]

    def _read(self, numbers: np.ndarray) -> list[TableRow]:
        """Makes the rows with these numbers in the store."""
        rows: list[TableRow] = []
        begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)  # of rows that are neighbors
        counts = np.diff(begins, append=len(numbers))
        for first, count in zip(numbers[begins].tolist(), counts.tolist(), strict=True):
            begin = int(self._offsets[first])
            end = int(self._offsets[first + count]) - len(END)
            # Python's texts from JSON may hold half of a character, a surrogate.
            text = self._text[begin:end].tobytes().decode("utf-8", "surrogatepass")
            rows += json.loads(f"[{text}]")
        if self.names is not None:
            return [_role_row(row, self.names) for row in rows]
        return rows


def _role_row(row: TableRow, names: dict[str, str | None]) -> RoleRow:
    """Returns the values of a row by role, None for roles that the table lacks.

    A name `column.key` is the value of a key where the column holds objects.
    """
    values: RoleRow = {}
    for role, name in names.items():
        if name is None:
            values[role] = None
        elif name in row:
            values[role] = row[name]
        else:
            column, _, key = name.partition(".")
            inner = row.get(column)
            values[role] = inner.get(key) if isinstance(inner, dict) else None
    return values


def write_rows(rows: Iterable[SourceRow], writer: StoreWriter) -> None:
    """Writes rows into a store, whose counts have the names of their columns, in order."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
    held: list[Encoded] = []
    size = 0
    for file, line, row in rows:
        if not row.keys() <= writer.counts.keys():
            for name in row:
                writer.count(name)
        text = (encode(row) + END).encode("utf-8", "surrogatepass")
        held.append({"json": np.frombuffer(text, np.uint8), "file": file, "line": line})
        size += len(text)
        if len(held) == MAX_HELD_ROWS or size > MAX_HELD_BYTES:
            writer.append("train", held)
            held = []
            size = 0
    writer.append("train", held)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named columns, in memory or mapped from files."""

    source: Source
    rows: TableRows  # a value per column; csv and tsv hold texts only
    fingerprint: str  # hash of the content
    # the names of the classes (ClassLabel) of each column
    names: ClassNames = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The field and value to name in errors."""
        return self.source.where

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.rows.store.counts)

    @property
    def identity(self) -> list[str]:
        """The inputs that decide the rows of a stored table."""
        return [self.fingerprint, *self.source.forms]

    def classes_of(self, columns: Mapping[str, str | None]) -> ClassNames:
        """Returns the names of the classes of each role, from the column of each role."""
        return {
            role: self.names[name] for role, name in columns.items() if name and name in self.names
        }

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_stored(self) -> bool:
        """Whether the rows are memory-mapped, as a large table's are."""
        return self.rows.store.folder is not None

    def name_rows(self, rows: Iterable[int]) -> str:
        """Names rows in errors, after `where`, as in `row 3` or `rows 3, 4`."""
        return self.source.name_rows([self.rows.origin(row) for row in rows])

    def take(self, numbers: np.ndarray) -> "Table":
        """Returns a table of the rows with these indices."""
        digest = hashlib.sha256(f"{self.fingerprint} [".encode())
        for begin in range(0, len(numbers), NUMBERS):
            # The text of one list of all numbers, so that fingerprints do not depend on NUMBERS.
            if begin:
                digest.update(b", ")
            digest.update(", ".join(map(str, numbers[begin : begin + NUMBERS].tolist())).encode())
        digest.update(b"]")
        return replace(self, rows=self.rows.take(numbers), fingerprint=digest.hexdigest()[:16])


def open_table(path: str, where: str, split: str = "train", *, root: str = "") -> Table:
    """Opens a table, whose rows are read into the cache if they are many.

    Args:
      path, where, split: as in `open_source`.
      root: data.cache, where the rows of a large table are kept; empty: they stay in memory.

    Raises:
      ConfigError: there is no such file, it is empty, or it cannot be read; names the line where
        there is one.
    """
    source = open_source(path, where, split=split, root=root)
    is_large = source.size > SMALL_BYTES

    def write(files: slice, writer: StoreWriter) -> None:
        with progress.working(f"reading {where}") if is_large else contextlib.nullcontext():
            write_rows(source.rows(files), writer)

    parts = []
    for files in source.parts():
        parts.append(Part(str(files.start), functools.partial(write, files)))
    if root and is_large:
        made_from = ["rows", FORMAT, store.FORMAT, source.fingerprint, *source.forms]
        name = f"store-{digests.digest_of(made_from)}"
        kept = store_writer.open_store(root, name, COLUMNS, parts)
    else:
        kept = store_writer.build_store(COLUMNS, parts)
    if not len(kept):
        raise ConfigError(f"{where}: no rows in it.")
    names = {}
    for column, classes in source.class_names.items():
        if not kept.counts.keys().isdisjoint((column, column.partition(".")[0])):
            names[column] = classes
    return Table(source, TableRows(kept), source.fingerprint, names)


def keep_table(rows: Iterable[TableRow], where: str = "") -> Table:
    """Keeps rows in memory as a table of one file."""
    placed = (SourceRow(0, number, row) for number, row in enumerate(rows, start=1))
    kept = store_writer.build_store(COLUMNS, [Part("0", functools.partial(write_rows, placed))])
    return Table(Source(where, (Path(where or "rows"),)), TableRows(kept), "")
