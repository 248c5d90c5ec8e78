"""The rows of a table, in a store, and their values by role.

A row is its JSON: a million rows lie one after another in one array of bytes, and are made when
they are asked for. JSON rather than pickle, as a cache may be shared with others, and nothing that
they write may run here. What JSON lacks, such as a date, is kept as its text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.data.store import Part, StoreWriter, TokenStore, build_store
from flaxformer_lite.objectives.rows import ClassNames, StoredColumn
from flaxformer_lite.objectives.tables.task import Task

COLUMNS = {"json": StoredColumn("uint8")}  # of the store
END = ",\n"  # behind each row, so that neighbors are the inside of a list
MAX_HELD_ROWS = 1 << 8  # before they are handed to the store
MAX_HELD_BYTES = 1 << 22  # of these rows
MAX_BATCH_ROWS = 1 << 12  # that are read at a time
MAX_BATCH_BYTES = 1 << 26  # of these rows, unless one has more
NUMBERS = 1 << 16  # row numbers hashed at a time
MAX_COLUMNS_IN_MESSAGE = 12
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

    def number(self, row: int) -> int:
        """Returns the number of a row in the store, which has all rows of the table."""
        return row if self._numbers is None else int(self._numbers[row])

    def by_role(self, names: dict[str, str | None]) -> "TableRows":
        """Returns the rows with their values by role; `names` has the column of each."""
        return TableRows(self.store, self._numbers, names)

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


def write_rows(rows: Iterable[TableRow], writer: StoreWriter) -> None:
    """Writes rows into a store, whose counts have the names of their columns, in order."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
    held = []
    size = 0
    for row in rows:
        if not row.keys() <= writer.counts.keys():
            for name in row:
                writer.count(name)
        text = (encode(row) + END).encode("utf-8", "surrogatepass")
        held.append({"json": np.frombuffer(text, np.uint8)})
        size += len(text)
        if len(held) == MAX_HELD_ROWS or size > MAX_HELD_BYTES:
            writer.append("train", held)
            held = []
            size = 0
    writer.append("train", held)


def keep_rows(rows: Iterable[TableRow]) -> TableRows:
    """Keeps rows in memory."""
    return TableRows(build_store(COLUMNS, [Part("0", lambda writer: write_rows(rows, writer))]))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named columns, in memory or mapped from files."""

    where: str  # the field and value to name in errors
    columns: tuple[str, ...]  # their names
    rows: TableRows  # a value per column; csv and tsv hold texts only
    fingerprint: str  # hash of the content
    # the names of the classes (ClassLabel) of each column
    names: ClassNames = field(default_factory=dict)
    kind: str = ""  # suffix of the file, by which its content was read

    @property
    def identity(self) -> list[str]:
        """Fingerprint and kind of the file: the same bytes parse differently as .csv and .tsv."""
        return [self.fingerprint, self.kind]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_stored(self) -> bool:
        """Whether the rows are memory-mapped, as a large table's are."""
        return self.rows.store.folder is not None

    def number(self, row: int) -> int:
        """Returns the number of a row in the file, from 1."""
        return 1 + self.rows.number(row)

    def with_names(self, names: ClassNames) -> "Table":
        """Returns the table with the names of its classes."""
        in_table = {}
        for column in names:
            if column in self.columns or column.partition(".")[0] in self.columns:
                in_table[column] = names[column]
        return replace(self, names=in_table)

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


def columns_of(
    objective: Task, read: Table, named: str, *, predicts: bool = False
) -> dict[str, str]:
    """Maps each role of a task to a column, as configured or by a conventional name.

    Args:
      objective: the task.
      read: the table.
      named: the configured columns, as ROLE=NAME,...
      predicts: whether to leave out the columns that the task predicts.

    Raises:
      ConfigError: there is no such column, or none with a conventional name.
    """
    configured = dict(pair.split("=", 1) for pair in named.split(",") if pair)
    roles = {column.role: column for column in objective.columns}
    has = f"has {', '.join(map(repr, read.columns[:MAX_COLUMNS_IN_MESSAGE]))}"
    if len(read.columns) > MAX_COLUMNS_IN_MESSAGE:
        has += ", ..."
    unknown = sorted(set(configured) - set(roles))
    if unknown:
        raise ConfigError(
            f"data.columns={named!r}: {plugin_name(objective)} reads {', '.join(roles)}, not"
            f" {unknown[0]!r}."
        )
    columns = {}
    lacking = []
    for role, column in roles.items():
        if predicts and column.predicted:
            continue
        name = _conventional(read.columns, (role, *column.names))
        if role in configured:
            name = _conventional(read.columns, (configured[role],)) or configured[role]
        if name in read.columns or str(name).partition(".")[0] in read.columns:
            columns[role] = str(name)
        elif role in configured:
            raise ConfigError(
                f"data.columns={named!r}: {read.where} {has}, and no {configured[role]!r}."
            )
        elif not column.optional:
            lacking.append(role)
    flag = "--config.data.columns"
    if read.where.startswith("--data="):
        flag = "--columns"
    if lacking:
        what = "a column for"
        them = "it"
        if len(lacking) > 1:
            what = "columns for"
            them = "them"
        value = ",".join(f"{role}=NAME" for role in lacking)
        raise ConfigError(
            f"{read.where}: {has}, where {plugin_name(objective)} needs {what}"
            f" {' and '.join(map(repr, lacking))}; name {them} with {flag}={value}."
        )
    return columns


def _conventional(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the column that has one of these names.

    An exact match comes first. Failing that, names of two or more letters match regardless of case
    and surrounding spaces.
    """
    for name in names:
        if name in columns:
            return name
    plain = {column.strip().casefold(): column for column in reversed(columns)}
    for name in names:
        if len(name) > 1 and name.casefold() in plain:
            return plain[name.casefold()]
    return None


def by_role(objective: Task, read: Table, named: str, *, predicts: bool = False) -> TableRows:
    """Returns the values of each row by role; None for roles without a column."""
    columns = columns_of(objective, read, named, predicts=predicts)
    return read.rows.by_role(
        {column.role: columns.get(column.role) for column in objective.columns}
    )
