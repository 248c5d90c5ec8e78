"""The rows of a large table in memory-mapped files.

They lie in folders of `content_cache.folder`, as tokenized text does, so they take no memory and
are made once. A block of rows is a JSON list of objects: one call for many rows takes a third of
the time of a call for each. JSON rather than pickle, as a cache may be shared with others, and
nothing that they write may run here.
"""

import abc
import base64
import datetime
import decimal
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike

from flaxformer_lite.files.read import Json

CHUNK = 1 << 12  # rows that are read at a time
HELD = 1 << 26  # bytes of rows that are read at a time, if one has no more
BLOCK = 1 << 8  # most rows of a block; to read one, all are read
BLOCK_SIZE = 1 << 20  # characters that end a block
IN_MEMORY = 1 << 16  # bytes of a file that is read instead of mapped, so that it is not kept open
EXACT = "\0type"  # the key that marks a value that JSON does not have
TableRow = dict[str, Any]  # the values of a row by column

# Types that pyarrow returns and JSON lacks, with the functions that write and read them.
TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}


class Unstorable(Exception):
    """A value has a type that files cannot hold; it stays in memory."""


def map_numbers(path: Path, dtype: DTypeLike) -> np.ndarray:
    """Maps a file of numbers into memory, or reads it if it is small."""
    if path.stat().st_size > IN_MEMORY:
        return np.asarray(np.memmap(path, dtype, "r"))
    values = np.fromfile(path, dtype)
    values.flags.writeable = False
    return values


class LazyRows(Sequence[TableRow]):
    """Rows of a table that are made when they are asked for.

    Attributes:
      chunk: rows that memory has room for at a time.
    """

    chunk: int

    @abc.abstractmethod
    def take(self, numbers: np.ndarray) -> list[TableRow]:
        """Returns the rows with these numbers, from 0."""

    @overload
    def __getitem__(self, index: int) -> TableRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[TableRow]: ...

    def __getitem__(self, index: int | slice) -> TableRow | list[TableRow]:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return self.take(np.arange(chosen.start, chosen.stop, chosen.step))
        return self.take(np.array([chosen]))[0]

    def __iter__(self) -> Iterator[TableRow]:
        for _, rows in batches_of(self):  # faster than one row at a time
            yield from rows


def batches_of(rows: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields the rows of a table a few at a time, each time with the number of the first."""
    step = CHUNK
    if isinstance(rows, LazyRows):
        step = rows.chunk
    for first in range(0, len(rows), step):
        yield first, rows[first : first + step]


class StoredRows(LazyRows):
    """The rows of a table, each a dict of values by column; `write_rows` makes the folder."""

    def __init__(self, folder: Path):
        self._text = map_numbers(folder / "rows", np.uint8).data
        # where each block begins: the number of its first row, and the byte; then the end
        blocks = map_numbers(folder / "rows.blocks", np.int64).reshape(-1, 2)
        self._starts, self._offsets = blocks.T
        rows, size = np.diff(blocks, axis=0).T
        widest = int((size / rows).max(initial=1))
        self.chunk = min(CHUNK, max(1, HELD // widest))
        self._last: tuple[int, list[TableRow]] = (-1, [])  # the number and rows of a block

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, numbers: np.ndarray) -> list[TableRow]:
        blocks = np.searchsorted(self._starts, numbers, side="right") - 1
        places = numbers - self._starts[blocks]
        rows = []
        last, block = self._last
        for number, place in zip(blocks.tolist(), places.tolist(), strict=True):
            if number != last:
                block = self._read(number)
                last = number
            rows.append(block[place])
        self._last = last, block
        return rows

    def _read(self, block: int) -> list[TableRow]:
        begin, end = self._offsets[block : block + 2].tolist()
        return _DECODER.decode(bytes(self._text[begin:end]).decode("utf-8", "surrogatepass"))


class TakenRows(LazyRows):
    """Some of the rows of a table."""

    def __init__(self, rows: LazyRows, numbers: np.ndarray):
        self._rows = rows
        self._numbers = numbers
        self.chunk = rows.chunk

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, numbers: np.ndarray) -> list[TableRow]:
        return self._rows.take(self._numbers[numbers])


def write_rows(folder: Path, rows: Iterable[TableRow]) -> tuple[str, ...]:
    """Writes the rows of a table and returns the names of its columns.

    Raises:
      Unstorable: a value has a type that cannot be written exactly.
    """
    columns: dict[str, None] = {}
    count = 0
    with (folder / "rows").open("wb") as file, (folder / "rows.blocks").open("wb") as blocks:
        blocks.write(np.zeros(2, np.int64).tobytes())
        for block in _blocks(rows):
            columns.update(dict.fromkeys(itertools.chain.from_iterable(block)))
            # Python's texts from JSON may hold half of a character, a surrogate.
            file.write(_ENCODER.encode(block).encode("utf-8", "surrogatepass"))
            count += len(block)
            blocks.write(np.array([count, file.tell()], np.int64).tobytes())
    return tuple(columns)


def _blocks(rows: Iterable[TableRow]) -> Iterator[list[TableRow]]:
    block: list[TableRow] = []
    size = 0
    for row in rows:
        block.append(row)
        size += count_characters(row)
        if len(block) == BLOCK or size >= BLOCK_SIZE:
            yield block
            block = []
            size = 0
    if block:
        yield block


def count_characters(value: object) -> int:
    """Returns about how many characters a value has as JSON."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(count_characters, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(count_characters, value))
    return 8


def _mark_type(value: object) -> Json:
    """Returns the JSON object that stands for a value of a type that JSON lacks."""
    for name, (kind, write, _) in TYPES.items():
        if type(value) is kind:
            return {EXACT: [name, write(value)]}
    raise Unstorable(f"a {type(value).__name__}")


def _restore_type(value: Json) -> Any:
    if len(value) == 1 and EXACT in value:
        name, written = value[EXACT]
        return TYPES[name][2](written)
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_mark_type)
_DECODER = json.JSONDecoder(object_hook=_restore_type)
