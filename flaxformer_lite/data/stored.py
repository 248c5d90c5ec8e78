"""Sequences of many small values in memory-mapped files: table rows and their features.

Both lie in folders of `content_cache.folder`, as tokenized text does, so they take no memory and
are made once. A row is a JSON text and a comma, between two offsets. The features of a task are
tuples of arrays and plain values; each position in the tuple has one file for all rows.
"""

import abc
import base64
import datetime
import decimal
import filecmp
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import DTypeLike

from flaxformer_lite.files.read import Json

CHUNK = 1 << 12  # values that are written at a time
HELD = 1 << 26  # bytes of rows that are read at a time, if one has no more
MOST_FORMS = 256  # most forms of a task's features, each of which has its own files
MOST_COLUMNS = 256  # each keeps files open, and a process may have 1024 open files
IN_MEMORY = 1 << 16  # bytes of a file that is read instead of mapped, so that it is not kept open
MOVED = 1 << 22  # numbers rewritten at a time, when a file gets a wider dtype
EXACT = "\0type"  # the key that marks a value that JSON does not have
PLAIN = (str, int, float, bool, type(None))
TableRow = dict[str, Any]  # the values of a row by column
Form = tuple[Any, ...]

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


def mapped(path: Path, dtype: DTypeLike) -> np.ndarray:
    """Maps a file of numbers into memory, or reads it if it is small."""
    if path.stat().st_size > IN_MEMORY:
        return np.asarray(np.memmap(path, dtype, "r"))
    values = np.fromfile(path, dtype)
    values.flags.writeable = False
    return values


class Chunked(Sequence[TableRow]):
    """Rows of a table, whose iterator reads slices, which is faster than reading single rows.

    Attributes:
      chunk: rows of a slice that memory has room for.
    """

    chunk: int

    @overload
    def __getitem__(self, index: int) -> TableRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[TableRow]: ...

    def __getitem__(self, index: int | slice) -> TableRow | list[TableRow]:
        if isinstance(index, slice):
            return self._slice(index)
        return self._row(_checked(index, len(self)))

    @abc.abstractmethod
    def _row(self, index: int) -> TableRow:
        """Returns the row at an index from 0."""

    @abc.abstractmethod
    def _slice(self, rows: slice) -> list[TableRow]:
        """Returns the rows of a slice."""

    def __iter__(self) -> Iterator[TableRow]:
        for begin in range(0, len(self), self.chunk):
            yield from self[begin : begin + self.chunk]


class StoredRows(Chunked):
    """The rows of a table, each a dict of values by column; `write_rows` makes the folder."""

    def __init__(self, folder: Path):
        self._columns = json.loads((folder / "columns.json").read_text())
        self._text = mapped(folder / "rows", np.uint8)
        self._offsets = mapped(folder / "rows.offsets", np.int64)
        widest = int(np.diff(self._offsets).max(initial=1))
        self.chunk = min(CHUNK, max(1, HELD // widest))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _slice(self, rows: slice) -> list[TableRow]:
        begin, stop, step = rows.indices(len(self))
        if step == 1:
            return self._read(begin, max(begin, stop))
        return list(self)[rows]

    def _row(self, index: int) -> TableRow:
        return self._read(index, index + 1)[0]

    def take(self, numbers: np.ndarray) -> list[TableRow]:
        """Returns the rows with these numbers, which ascend."""
        if not len(numbers):
            return []
        breaks = np.flatnonzero(np.diff(numbers) != 1)
        first = numbers[np.concatenate([[0], breaks + 1])]
        last = numbers[np.concatenate([breaks, [len(numbers) - 1]])]
        bounds = zip(self._offsets[first].tolist(), self._offsets[last + 1].tolist(), strict=True)
        return self._parsed(b"".join(self._text[begin:end].tobytes() for begin, end in bounds))

    def _read(self, begin: int, stop: int) -> list[TableRow]:
        return self._parsed(self._text[self._offsets[begin] : self._offsets[stop]].tobytes())

    def _parsed(self, text: bytes) -> list[TableRow]:
        rows = _read_json(f"[{text.decode('utf-8', 'surrogatepass').removesuffix(',')}]")
        named = []
        for row in rows:
            if not isinstance(row, dict):
                row = dict(zip(self._columns, row, strict=True))
            named.append(row)
        return named


def write_rows(folder: Path, rows: Iterable[TableRow]) -> tuple[str, ...]:
    """Writes the rows of a table and returns the names of its columns.

    Raises:
      Unstorable: a value has a type that cannot be written exactly.
    """
    columns: dict[str, None] = {}
    first: list[str] | None = None
    with (folder / "rows").open("wb") as file, (folder / "rows.offsets").open("wb") as offsets:
        end = np.zeros(1, np.int64)
        offsets.write(end.tobytes())
        for row in rows:
            names = list(row)
            if first is None:
                first = names
            if names == first:
                text = _write_json(list(row.values()))
            else:
                text = _write_json(row)
            columns.update(dict.fromkeys(names))
            end += file.write(f"{text},".encode("utf-8", "surrogatepass"))
            offsets.write(end.tobytes())
    (folder / "columns.json").write_text(json.dumps(first or []))
    return tuple(columns)


class TakenRows(Chunked):
    """Some of the rows of a table, in ascending order of their numbers."""

    def __init__(self, rows: Sequence[TableRow], numbers: np.ndarray):
        self._rows = rows
        self._numbers = numbers
        self.chunk = getattr(rows, "chunk", CHUNK)

    def __len__(self) -> int:
        return len(self._numbers)

    def _slice(self, rows: slice) -> list[TableRow]:
        return self.take(np.arange(len(self))[rows])

    def _row(self, index: int) -> TableRow:
        return self._rows[int(self._numbers[index])]

    def take(self, numbers: np.ndarray) -> list[TableRow]:
        """Returns the rows with these numbers, as counted here."""
        inner = self._numbers[numbers]
        if isinstance(self._rows, (StoredRows, TakenRows)) and np.all(np.diff(numbers) > 0):
            return self._rows.take(inner)
        return [self._rows[number] for number in inner.tolist()]


class StoredFeatures(Sequence):
    """A task's features, one per example; `FeatureWriter` makes the folder.

    A feature is made anew from the files at each access, so it may be changed freely.

    Raises:
      Unstorable: the class of a named tuple is in no module that was imported.
    """

    def __init__(self, folder: Path):
        described = json.loads((folder / "features.json").read_text())
        self._forms = described["forms"]
        self._count = described["count"]
        self.folder = folder
        self._columns = described["columns"]
        self._form_of = self._place_of = None
        if len(self._forms) > 1:
            self._form_of = mapped(folder / "form", np.uint8)
            self._place_of = mapped(folder / "place", np.int64)
        self._arrays: dict[str, np.ndarray] = {}
        self._readers = []
        for number, form in enumerate(self._forms):
            self._readers.append(self._reader(form, f"{number}-"))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = _checked(index, self._count)
        if self._form_of is None or self._place_of is None:
            return self._readers[0](index)
        return self._readers[self._form_of[index]](self._place_of[index])

    def column(self, *place: int) -> np.ndarray:
        """Returns the number or array at a path in the tuples, of all features at once.

        Raises:
          Unstorable: there is none, or its shape is not the same in all features.
        """
        parts = []
        for number, form in enumerate(self._forms):
            for at in place:
                form = form["of"][at] if at < len(form.get("of", ())) else {"kind": "none"}
            if form["kind"] not in ("scalar", "fixed", "plain"):
                raise Unstorable(f"{form['kind']} at {place}")
            parts.append((number, self._fixed(form).astype(form["dtype"])))
        if self._form_of is None:
            return parts[0][1]
        column = np.empty((self._count, *parts[0][1].shape[1:]), parts[0][1].dtype)
        for number, values in parts:
            column[self._form_of == number] = values
        return column

    def _array(self, name: str, dtype: DTypeLike) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = mapped(self.folder / name, dtype)
        return self._arrays[name]

    def _fixed(self, form: Json) -> np.ndarray:
        values = self._array(form["file"], self._columns[form["file"]]["dtype"])
        return values.reshape(-1, *form.get("shape", ()))

    def _reader(self, form: Json, prefix: str) -> Callable[[int], Any]:
        """Returns the function that reads the value at an index in the files of a layout."""
        kind = form["kind"]
        if kind == "none":
            return lambda place: None
        if kind in ("tuple", "list", "named"):
            readers = [self._reader(inner, prefix) for inner in form["of"]]
            if kind == "named":
                make = _named_tuple(form["class"], len(readers))._make
            else:
                make = {"tuple": tuple, "list": list}[kind]
            return lambda place: make([read(place) for read in readers])
        dtype = np.dtype(form["dtype"])
        if kind in ("scalar", "fixed", "plain"):
            values = self._fixed(form)
            if kind == "scalar":
                return lambda place: dtype.type(values[place])
            if kind == "plain":
                return lambda place: values[place].astype(dtype).item()
            return lambda place: values[place].astype(dtype)
        column = self._columns[form["file"]]
        values = self._array(form["file"], column["dtype"])
        offsets = self._array(column["offsets"], np.int64)

        def slice_at(place: int) -> np.ndarray:
            return values[offsets[place] : offsets[place + 1]]

        if kind == "json":
            return lambda place: json.loads(
                slice_at(place).tobytes().decode("utf-8", "surrogatepass")
            )
        return lambda place: slice_at(place).astype(dtype)


class FeatureWriter:
    """Writes features into a folder, which is complete once its `with` block ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._forms: dict[Form, int] = {}
        self._counts: list[int] = []
        self._columns: dict[str, _Column] = {}
        self._form_of = (folder / "form").open("wb")
        self._place_of = (folder / "place").open("wb")

    def add(self, features: Sequence[Any]) -> None:
        """Appends features.

        Raises:
          Unstorable: a value in one of them is neither an array nor plain, or they have more
            forms than MOST_FORMS, or arrays than MOST_COLUMNS.
        """
        groups: dict[Form, list[list[Any]]] = {}
        numbers = np.zeros(len(features), np.uint8)
        places = np.zeros(len(features), np.int64)
        for at, feature in enumerate(features):
            leaves: list[Any] = []
            form = _form(feature, leaves)
            number = self._forms.setdefault(form, len(self._forms))
            if number >= MOST_FORMS:
                raise Unstorable("features of too many forms")
            if number == len(self._counts):
                self._counts.append(0)
            numbers[at] = number
            places[at] = self._counts[number]
            self._counts[number] += 1
            groups.setdefault(form, []).append(leaves)
        self._form_of.write(numbers.tobytes())
        self._place_of.write(places.tobytes())
        for form, rows in groups.items():
            columns = zip(_leaves(form), zip(*rows, strict=True), strict=True)
            for at, (leaf, values) in enumerate(columns):
                name = f"{self._forms[form]}-{at}"
                if name not in self._columns:
                    if len(self._columns) == MOST_COLUMNS:
                        raise Unstorable("features of too many arrays")
                    self._columns[name] = _Column(self._folder / name)
                self._columns[name].add(leaf, values)

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._form_of.close()
        self._place_of.close()
        for column in self._columns.values():
            column.close()
        if kind is None:
            self._complete()

    def _complete(self) -> None:
        if len(self._forms) < 2:
            (self._folder / "form").unlink()
            (self._folder / "place").unlink()
        columns: dict[str, Json] = {}
        for name, column in self._columns.items():
            columns[name] = {"dtype": column.dtype.str}
            if column.offsets is not None:
                columns[name]["offsets"] = self._shared(column, columns)
        forms = []
        for form, number in self._forms.items():
            forms.append(_layout_json(form, f"{number}-", itertools.count()))
        described = {"count": sum(self._counts), "forms": forms, "columns": columns}
        (self._folder / "features.json").write_text(json.dumps(described))

    def _shared(self, column: "_Column", columns: dict[str, Json]) -> str:
        """Returns the name of an earlier file with the same offsets, and deletes the copy.

        Ids and their token types share offsets, for example.
        """
        group = column.path.name.partition("-")[0]
        for name, other in columns.items():
            same = name.partition("-")[0] == group and other.get("offsets", "").startswith(name)
            if same and filecmp.cmp(
                self._folder / other["offsets"], column.offsets_path, shallow=False
            ):
                column.offsets_path.unlink()
                return other["offsets"]
        return column.offsets_path.name


class _Column:
    """One array per feature, all of the same leaf, in one file.

    Its dtype is the narrowest that holds all numbers.
    """

    def __init__(self, path: Path):
        self.path = path
        self.offsets_path = path.with_name(f"{path.name}.offsets")
        self.dtype = np.dtype(np.uint8)
        self.offsets: BinaryIO | None = None
        self._file = path.open("wb")
        self._end = 0
        self._empty = True

    def add(self, leaf: Form, values: Sequence[Any]) -> None:
        kind, dtype = leaf[:2]
        if kind == "json":
            values = [np.frombuffer(value, np.uint8) for value in values]
        if kind in ("json", "array"):
            if self.offsets is None:
                self.offsets = self.offsets_path.open("wb")
                self.offsets.write(np.int64(0).tobytes())
            ends = self._end + np.cumsum([len(value) for value in values])
            self._end = int(ends[-1])
            self.offsets.write(ends.astype(np.int64).tobytes())
            numbers = np.concatenate(values)
        else:
            try:
                numbers = np.asarray(values, dtype)
            except OverflowError:
                raise Unstorable("a whole number of more than 64 bits") from None
        self._widen(np.dtype(dtype), numbers)
        self._file.write(np.ascontiguousarray(numbers).astype(self.dtype).tobytes())

    def _widen(self, dtype: np.dtype, numbers: np.ndarray) -> None:
        if not numbers.size:
            return
        needed = dtype
        if dtype.kind in "iu":
            lowest = np.min_scalar_type(int(numbers.min()))
            highest = np.min_scalar_type(int(numbers.max()))
            needed = np.promote_types(lowest, highest)
        wide = needed if self._empty else np.promote_types(self.dtype, needed)
        if wide.kind == "f" and dtype.kind in "iu":  # there is no wider whole number
            wide = dtype
        if wide != self.dtype and not self._empty:
            self._file.close()
            narrow = self.path.rename(self.path.with_name(f"{self.path.name}.narrow"))
            self._file = self.path.open("wb")
            before = mapped(narrow, self.dtype)
            for begin in range(0, len(before), MOVED):
                self._file.write(before[begin : begin + MOVED].astype(wide).tobytes())
            narrow.unlink()
        self.dtype = wide
        self._empty = False

    def close(self) -> None:
        self._file.close()
        if self.offsets is not None:
            self.offsets.close()


def _form(value: Any, leaves: list[Any]) -> Form:
    """Returns the layout of a feature, and appends the values of its leaves."""
    kind: Any = type(value)
    form = _array_form(value.dtype) if kind is np.ndarray else None
    if form:
        leaves.append(value)
        if value.ndim == 1:
            return form
        return ("fixed", form[1], value.shape)
    if value is None:
        return ("none",)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        leaves.append(value)
        return ("scalar", value.dtype.str)
    if kind in (int, float, bool):
        leaves.append(value)
        return ("plain", np.dtype(kind).str)
    if kind is str or (kind is list and all(type(item) in PLAIN for item in value)):
        leaves.append(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        return ("json", "|u1")
    if kind in (tuple, list):
        return (kind.__name__, *[_form(item, leaves) for item in value])
    name = _name_of(kind)
    if name:
        return ("named", name, *[_form(item, leaves) for item in value])
    raise Unstorable(f"a {kind.__name__}")


@functools.cache
def _array_form(dtype: np.dtype) -> Form:
    """Returns the layout of arrays with one axis; empty for those that are not numbers."""
    if dtype.kind not in "biuf":
        return ()
    return ("array", dtype.str)


@functools.cache
def _name_of(kind: type) -> str:
    """Returns the name of a class of named tuples; empty for other classes, and local ones."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and "<" not in kind.__qualname__:
        return f"{kind.__module__}:{kind.__qualname__}"
    return ""


def _children(form: Form) -> Form:
    return form[2:] if form[0] == "named" else form[1:]


def _leaves(form: Form) -> Iterator[Form]:
    if form[0] in ("tuple", "list", "named"):
        for inner in _children(form):
            yield from _leaves(inner)
    elif form[0] != "none":
        yield form


def _layout_json(form: Form, prefix: str, numbers: Iterator[int]) -> Json:
    """Returns a layout as JSON, with the file name of each leaf."""
    if form[0] in ("tuple", "list", "named"):
        inner = [_layout_json(child, prefix, numbers) for child in _children(form)]
        layout: Json = {"kind": form[0], "of": inner}
        if form[0] == "named":
            layout["class"] = form[1]
        return layout
    if form[0] == "none":
        return {"kind": "none"}
    layout = {"kind": form[0], "dtype": form[1], "file": f"{prefix}{next(numbers)}"}
    if form[0] == "fixed":
        layout["shape"] = form[2]
    return layout


def _named_tuple(name: str, fields: int) -> Any:
    """Returns a class of named tuples whose module the program has imported.

    Nothing is imported, as a cache may be shared with others, who write its names.
    """
    module, _, path = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, "__dict__", {}).get(part)  # not by getattr: a module may import then
    is_tuple = isinstance(cls, type) and issubclass(cls, tuple)
    if not is_tuple or len(getattr(cls, "_fields", ())) != fields:
        raise Unstorable(f"{name} is not a named tuple of {fields} fields that was imported")
    return cls


def _checked(index: int, count: int) -> int:
    index = int(index)
    if not -count <= index < count:
        raise IndexError(f"{index} of {count}")
    return index % count


def _exact(value: object) -> Json:
    """Returns the JSON object that stands for a value of a type that JSON lacks."""
    for name, (kind, write, _) in TYPES.items():
        if type(value) is kind:
            return {EXACT: [name, write(value)]}
    raise Unstorable(f"a {type(value).__name__}")


def _restored(value: Json) -> Any:
    if len(value) == 1 and EXACT in value:
        name, written = value[EXACT]
        return TYPES[name][2](written)
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_exact)
_DECODER = json.JSONDecoder()
_EXACT_DECODER = json.JSONDecoder(object_hook=_restored)
_MARK = json.dumps(EXACT)


def _write_json(value: object) -> str:
    # As the encoder writes them, in a third of the time: a row of csv has nothing but texts.
    if type(value) is list and all(type(item) is str for item in value):
        return f"[{','.join(map(json.encoder.encode_basestring, value))}]"
    return _ENCODER.encode(value)


def _read_json(text: str) -> Any:
    return (_EXACT_DECODER if _MARK in text else _DECODER).decode(text)
