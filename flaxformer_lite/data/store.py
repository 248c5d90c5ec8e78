"""Named arrays with one entry for each record, in two files that are mapped into memory.

A store is a folder of `content_cache`. The file `columns` holds all arrays one after another,
little-endian, each at a multiple of 64 bytes; store.json says what they are. The records of
training come first, then those held out, so that a split is a range of numbers. A record's entry in
a column is an array of a fixed shape, or one axis of any length, whose offsets are an array of
their own. Nothing but JSON and numbers is read, so a cache that others write can run nothing.
store_writer.py writes them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.files.read import Json

FORMAT = 1  # of the files; a name of a store contains it
COLUMNS = "columns"
DESCRIPTION = "store.json"
MAX_READ_BYTES = 1 << 16  # a smaller file is read, so that it is not kept open


class TokenStore:
    """Records of named arrays, which are mapped or in memory.

    Attributes:
      splits: the numbers of the records of "train" and of "eval".
      counts: what the writers have counted, such as records that were cut.
      folder: where its files are; None in memory.
    """

    def __init__(
        self, columns: Mapping[str, "_Column"], description: Json, folder: Path | None = None
    ):
        self._columns = columns
        self.folder = folder
        self.splits = {name: range(*ends) for name, ends in description["splits"].items()}
        self.counts: dict[str, int] = description["counts"]

    def __len__(self) -> int:
        return self.splits["eval"].stop

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, record: int) -> dict[str, np.ndarray]:
        """Returns copies of a record's entries; tokens and numbers of keys are int32."""
        return {name: column.read(record) for name, column in self._columns.items()}

    def entry(self, record: int, name: str) -> np.ndarray:
        """Returns a copy of a record's entry in one column."""
        return self._columns[name].read(record)

    def values(self, name: str) -> np.ndarray:
        """Returns all entries of a column: [records, *shape], or one after another, [total]."""
        return self._columns[name].values

    def has_offsets(self, name: str) -> bool:
        """Returns whether the entries of a column have any lengths."""
        return self._columns[name].offsets is not None

    def offsets(self, name: str) -> np.ndarray:
        """Returns where the entries of a column of any lengths begin, [records + 1] int64."""
        offsets = self._columns[name].offsets
        if offsets is None:
            raise ValueError(f"{name}: all entries have one shape, so that it has no offsets.")
        return offsets

    def lengths(self, name: str) -> np.ndarray:
        """Returns the lengths of the entries of a column of any lengths, [records] int32."""
        return np.diff(self.offsets(name)).astype(np.int32)


def map_store(folder: Path) -> TokenStore:
    """Maps a complete store into memory, or reads it if it is small."""
    path = folder / COLUMNS
    if path.stat().st_size > MAX_READ_BYTES:
        content = np.asarray(np.memmap(path, np.uint8, "r"))
    else:
        content = np.frombuffer(path.read_bytes(), np.uint8)
    return open_columns(content, json.loads((folder / DESCRIPTION).read_bytes()), folder)


def open_columns(content: np.ndarray, description: Json, folder: Path | None = None) -> TokenStore:
    """Opens a store from the bytes of its columns, [N] uint8."""

    def read(dtype: str, start: int, count: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize * count
        return content[start : start + size].view(dtype)

    columns = {}
    for name, stored in description["columns"].items():
        values = read(*stored["values"])
        offsets = None
        if "shape" in stored:
            values = values.reshape(-1, *stored["shape"])
        else:
            like = stored["offsets"] if isinstance(stored["offsets"], str) else name
            offsets = read(*description["columns"][like]["offsets"])
        columns[name] = _Column(stored["kind"], values, offsets)
    return TokenStore(columns, description, folder)


class _Column(NamedTuple):
    kind: str  # of StoredColumn.dtype
    values: np.ndarray
    offsets: np.ndarray | None

    def read(self, record: int) -> np.ndarray:
        if self.offsets is None:
            entry = self.values[record]
        else:
            entry = self.values[self.offsets[record] : self.offsets[record + 1]]
        if self.kind in ("token", "key"):
            return entry.astype(np.int32)
        return np.array(entry)  # a copy, which may be changed
