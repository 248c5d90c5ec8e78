"""Writes stores (store.py): in memory, or in parts that several processes write together.

Each process claims a part, which becomes a folder of its own, and the first that finds all parts
written joins them. A process that is killed loses the part that it was writing.
"""

import functools
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.data.store import (
    COLUMNS,
    DESCRIPTION,
    FORMAT,
    TokenStore,
    map_store,
    open_columns,
)
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.rows import Encoded, StoredColumn
from flaxformer_lite.storage import content_cache

ALIGNED_BYTES = 64  # of a cache line, and more than any dtype needs
MAX_BUFFERED_BYTES = 1 << 22  # of a column, before it is moved to a file
COPIED_BYTES = 1 << 24  # at a time, when parts are joined
MAX_UINT16_VOCABULARY = 1 << 16


class StoreWriter:
    """Takes the records of a store, or of a part of one.

    Args:
      columns: the columns of the store.
      vocab_size: number of tokens, which decides the dtype of tokens.
      folder: where columns are kept while they grow; None keeps them in memory.
    """

    def __init__(
        self, columns: Mapping[str, StoredColumn], vocab_size: int = 0, folder: Path | None = None
    ):
        self._columns = columns
        self.counts: dict[str, int] = {}
        self.sizes = dict.fromkeys(SPLITS, 0)
        self.pieces: dict[tuple[str, str], _Growing] = {}
        self.lengths: dict[tuple[str, str], _Growing] = {}
        self._begun: dict[tuple[str, str], int] = {}
        for split in SPLITS:
            for name, column in columns.items():
                dtype = _stored_dtype(column, vocab_size)
                self.pieces[split, name] = _Growing(dtype, folder)
                if column.shape is None and not column.like:
                    self.lengths[split, name] = _Growing(np.dtype(np.int64), folder)

    def append(self, split: str, records: Sequence[Encoded]) -> None:
        """Appends records to a split.

        Raises:
          ConfigError: a record has other columns, or an entry another shape, than was declared.
        """
        if not records:
            return
        values: dict[str, np.ndarray] = {}
        lengths: dict[str, np.ndarray] = {}
        for name, column in self._columns.items():
            entries = _entries(records, name)
            if column.shape is None:
                lengths[name] = np.fromiter(map(len, entries), np.int64, len(entries))
            values[name] = _joined(entries, name, column)
        unknown = {name for record in records for name in record} - set(self._columns)
        if unknown:
            raise ConfigError(f"column {min(unknown)!r}: is not declared in `stored`.")
        self.append_joined(split, len(records), values, lengths)

    def append_joined(
        self,
        split: str,
        count: int,
        values: Mapping[str, np.ndarray],
        lengths: Mapping[str, np.ndarray],
    ) -> None:
        """Appends `count` records whose entries are joined along one axis, one array per column.

        Args:
          split: "train" or "eval".
          count: number of records.
          values: of each column.
          lengths: of the entries of each column of any lengths, [count].
        """
        for name, column in self._columns.items():
            if column.like and (lengths[name] != lengths[column.like]).any():
                raise ConfigError(f"column {name!r}: has other lengths than {column.like!r}.")
            _check_dtype(values[name], name, self.pieces[split, name].dtype)
            self.pieces[split, name].add(values[name])
            if (split, name) in self.lengths:
                sizes = np.array(lengths[name], np.int64)
                sizes[:1] += self._begun.pop((split, name), 0)
                self.lengths[split, name].add(sizes)
        self.sizes[split] += count

    def begin_entry(self, split: str, name: str, values: np.ndarray) -> None:
        """Appends values to an entry that the next record of the split will end.

        So an entry may be larger than memory.
        """
        _check_dtype(values, name, self.pieces[split, name].dtype)
        self.pieces[split, name].add(values)
        self._begun[split, name] = self._begun.get((split, name), 0) + len(values)

    def count(self, name: str, number: int = 1) -> None:
        """Counts something that the store's user reports."""
        self.counts[name] = self.counts.get(name, 0) + number


class Part(NamedTuple):
    """Records that one process writes at a time.

    Attributes:
      name: tells it from the other parts of the store.
      write: appends its records to a writer.
    """

    name: str
    write: Callable[[StoreWriter], None]


def open_store(
    root: str,
    name: str,
    columns: Mapping[str, StoredColumn],
    parts: Sequence[Part],
    vocab_size: int = 0,
) -> TokenStore:
    """Opens a store of the cache, which is written first if it is not there.

    Args:
      root: data.cache.
      name: contains the hash of everything that the content depends on, FORMAT too.
      columns: by name.
      parts: in the order of their records; processes that share a disk divide them.
      vocab_size: as in `StoreWriter`.

    Raises:
      NotWritable: the cache is not writable, or has no room for the parts and the whole.
    """
    final = content_cache.find_place(root, name)
    try:
        _build(root, name, columns, parts, vocab_size)
    except content_cache.NotWritable:
        # Without locks, another process may have finished, and removed what this one was reading.
        if not content_cache.is_complete(final):
            raise
    for left in final.parent.glob(f"{name}.part-*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
    return map_store(final)


def _build(
    root: str,
    name: str,
    columns: Mapping[str, StoredColumn],
    parts: Sequence[Part],
    vocab_size: int,
) -> None:
    """Writes a store unless it is there; leaves to others the parts that they are writing."""
    final = content_cache.find_place(root, name)
    write = functools.partial(_write_whole, columns, parts, vocab_size)
    if len(parts) > 1:
        named = {f"{name}.part-{part.name}": part for part in parts}
        for part_name, part in named.items():
            if content_cache.is_complete(final):
                return
            write_part = functools.partial(
                _write_whole, columns, [part], vocab_size, numbers_keys=False
            )
            content_cache.claim(root, part_name, write_part)
        write = functools.partial(_join_parts, root, named, columns, vocab_size)
    content_cache.folder(root, name, write)


def build_store(
    columns: Mapping[str, StoredColumn], parts: Sequence[Part], vocab_size: int = 0
) -> TokenStore:
    """Builds a store in memory: of a small table, or where the cache cannot be written."""
    writer = StoreWriter(columns, vocab_size)
    for part in parts:
        part.write(writer)
    content = io.BytesIO()
    description = _write_columns(content, columns, [_source_of(writer)], vocab_size)
    return open_columns(np.frombuffer(content.getvalue(), np.uint8), description)


class _Growing:
    """An array of one axis that grows, in memory or beyond it in a file."""

    def __init__(self, dtype: np.dtype, folder: Path | None):
        self.dtype = dtype
        self._folder = folder
        self._file: BinaryIO | None = None
        self._held: list[np.ndarray] = []
        self._held_bytes = 0
        self.size = 0

    def add(self, values: np.ndarray) -> None:
        values = values.astype(self.dtype)
        self._held.append(values)
        self._held_bytes += values.nbytes
        self.size += values.size
        if self._folder is not None and self._held_bytes > MAX_BUFFERED_BYTES:
            if self._file is None:
                self._file = open(self._folder / f"growing-{id(self):x}", "w+b")  # noqa: SIM115
            for held in self._held:
                self._file.write(held.tobytes())
            self._held = []
            self._held_bytes = 0

    def chunks(self) -> Iterator[np.ndarray]:
        """Yields the content in pieces; a file is removed afterwards."""
        if self._file is not None:
            self._file.seek(0)
            while content := self._file.read(COPIED_BYTES):
                yield np.frombuffer(content, self.dtype)
            self._file.close()
            Path(self._file.name).unlink()
        yield from self._held


class _Source(NamedTuple):
    """Records that a store is made of: a writer's, or a part's.

    Attributes:
      sizes: number of records by split.
      counts: what was counted.
      values: yields the values of a column of a split in pieces.
      lengths: likewise the lengths of its entries.
    """

    sizes: Mapping[str, int]
    counts: Mapping[str, int]
    values: Callable[[str, str], Iterable[np.ndarray]]
    lengths: Callable[[str, str], Iterable[np.ndarray]]


def _source_of(writer: StoreWriter) -> _Source:
    return _Source(
        writer.sizes,
        writer.counts,
        lambda split, name: writer.pieces[split, name].chunks(),
        lambda split, name: writer.lengths[split, name].chunks(),
    )


def _part_source(store: TokenStore) -> _Source:
    def values(split: str, name: str) -> Iterator[np.ndarray]:
        records = store.splits[split]
        first = records.start
        last = records.stop
        column = store.values(name)
        if store.has_offsets(name):
            first, last = store.offsets(name)[[first, last]].tolist()
        step = max(1, COPIED_BYTES // max(1, column[:1].nbytes))
        for start in range(first, last, step):
            yield column[start : min(start + step, last)].reshape(-1)

    def lengths(split: str, name: str) -> Iterator[np.ndarray]:
        records = store.splits[split]
        yield np.diff(store.offsets(name)[records.start : records.stop + 1])

    sizes = {split: len(records) for split, records in store.splits.items()}
    return _Source(sizes, store.counts, values, lengths)


def _write_whole(
    columns: Mapping[str, StoredColumn],
    parts: Sequence[Part],
    vocab_size: int,
    folder: Path,
    *,
    numbers_keys: bool = True,
) -> None:
    """Writes parts, one after another, as one store."""
    writer = StoreWriter(columns, vocab_size, folder)
    for part in parts:
        part.write(writer)
    _write_files(columns, [_source_of(writer)], vocab_size, folder, numbers_keys=numbers_keys)


def _join_parts(
    root: str,
    named: Mapping[str, Part],
    columns: Mapping[str, StoredColumn],
    vocab_size: int,
    folder: Path,
) -> None:
    """Joins the parts of a store; waits for those that other processes write."""
    places = []
    for name, part in named.items():
        write = functools.partial(_write_whole, columns, [part], vocab_size, numbers_keys=False)
        places.append(content_cache.folder(root, name, write))
    need = sum((place / COLUMNS).stat().st_size for place in places)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise content_cache.NotWritable(
            f"data.cache={root!r}: needs {need / 1e6:,.0f} MB to join what has been encoded, and"
            f" has {free / 1e6:,.0f} MB free; free some space, or name another folder,"
            " --config.data.cache=FOLDER."
        )
    sources = [_part_source(map_store(place)) for place in places]
    _write_files(columns, sources, vocab_size, folder)


def _write_files(
    columns: Mapping[str, StoredColumn],
    sources: Sequence[_Source],
    vocab_size: int,
    folder: Path,
    *,
    numbers_keys: bool = True,
) -> None:
    with open(folder / COLUMNS, "wb") as file:
        description = _write_columns(file, columns, sources, vocab_size, numbers_keys=numbers_keys)
    (folder / DESCRIPTION).write_text(json.dumps(description))


def _write_columns(
    file: BinaryIO,
    columns: Mapping[str, StoredColumn],
    sources: Sequence[_Source],
    vocab_size: int,
    *,
    numbers_keys: bool = True,
) -> Json:
    """Writes the arrays of all columns; returns the description of the store."""

    def write(chunks: Iterable[np.ndarray], dtype: np.dtype) -> list[Any]:
        file.write(b"\0" * (-file.tell() % ALIGNED_BYTES))
        start = file.tell()
        count = 0
        dtype = dtype.newbyteorder("<")
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype).data)
            count += chunk.size
        return [dtype.str, start, count]

    described: dict[str, Json] = {}
    for name, column in columns.items():
        dtype = _stored_dtype(column, vocab_size)
        values: Iterable[np.ndarray] = _values_of(name, sources)
        if column.dtype == "key" and numbers_keys:
            keys = np.concatenate([np.zeros(0, dtype), *values])
            # of different keys, from 0
            values = [np.unique(keys, return_inverse=True)[1]]
            dtype = np.dtype(np.int32)
        described[name] = {"kind": column.dtype, "values": write(values, dtype)}
        if column.shape is not None:
            described[name]["shape"] = list(column.shape)
        elif column.like:
            described[name]["offsets"] = column.like
        else:
            described[name]["offsets"] = write(_offsets_of(name, sources), np.dtype(np.int64))
    sizes = {split: sum(source.sizes[split] for source in sources) for split in SPLITS}
    counts: dict[str, int] = {}
    for source in sources:
        for name, number in source.counts.items():
            counts[name] = counts.get(name, 0) + number
    total = sum(sizes.values())
    splits = {"train": [0, sizes["train"]], "eval": [sizes["train"], total]}
    return {
        "format": FORMAT,
        "records": total,
        "splits": splits,
        "counts": counts,
        "columns": described,
    }


def _values_of(name: str, sources: Sequence[_Source]) -> Iterator[np.ndarray]:
    for split in SPLITS:
        for source in sources:
            yield from source.values(split, name)


def _offsets_of(name: str, sources: Sequence[_Source]) -> Iterator[np.ndarray]:
    end = 0
    yield np.zeros(1, np.int64)
    for split in SPLITS:
        for source in sources:
            for lengths in source.lengths(split, name):
                offsets = end + np.cumsum(lengths, dtype=np.int64)
                if len(offsets):
                    end = int(offsets[-1])
                yield offsets


def _stored_dtype(column: StoredColumn, vocab_size: int) -> np.dtype:
    if column.dtype == "token":
        return np.dtype(np.uint16 if vocab_size <= MAX_UINT16_VOCABULARY else np.uint32)
    if column.dtype == "key":
        return np.dtype(np.uint64)
    return np.dtype(column.dtype)


def _entries(records: Sequence[Encoded], name: str) -> list[Any]:
    entries = []
    for record in records:
        if name not in record:
            raise ConfigError(f"column {name!r}: is declared in `stored`, and a record lacks it.")
        entries.append(record[name])
    return entries


def _joined(entries: Sequence[np.ndarray], name: str, column: StoredColumn) -> np.ndarray:
    """Joins the entries of records along one axis."""
    try:
        if column.shape is None:
            values = np.concatenate(entries)
            fits = values.ndim == 1
        else:
            values = np.asarray(entries)
            fits = values.shape == (len(entries), *column.shape)
    except ValueError:  # arrays of several shapes, or numbers
        fits = False
    if not fits:
        shape = "one axis" if column.shape is None else f"the shape {list(column.shape)}"
        raise ConfigError(f"column {name!r}: an entry does not have {shape}, as `stored` declares.")
    return values.reshape(-1)


def _check_dtype(values: np.ndarray, name: str, dtype: np.dtype) -> None:
    """Refuses values that would be rounded, or are no numbers."""
    fits = np.can_cast(values.dtype, dtype, "same_kind")
    if dtype.kind == "u" and values.dtype.kind == "i":
        fits = not values.size or values.min() >= 0
    # An empty list is a float of numpy's.
    if not fits and values.size:
        raise ConfigError(
            f"column {name!r}: holds {values.dtype} values, where `stored` declares {dtype}."
        )
