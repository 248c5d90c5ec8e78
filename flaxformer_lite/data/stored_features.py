"""The features of a task in memory-mapped files.

A feature is a tree of tuples and lists with arrays and plain values as leaves. Features are written
in blocks, a column at a time: the values that stand at one place of the tree in all features of the
block become one array, so that the labels of a million features are read at once, and numbers take
no more bytes than they need. The arrays stand one after another in the file `features`, and
`features.json` says what they are.
"""

import bisect
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.data.stored import Unstorable, map_numbers
from flaxformer_lite.files.read import Json

MOST_COLUMNS = 256  # arrays of a block; with more, their description is larger than they are
ALIGNED = 8  # bytes; numpy reads numbers at other addresses more slowly
PLAIN = (str, int, float, bool, type(None))
TREES = {"tuple": tuple, "list": list}


@dataclass
class _Numbers:
    """Numbers of Python, or arrays of one dtype, in the features of a block."""

    values: np.ndarray
    offsets: np.ndarray | None  # of each array, if their lengths differ
    dtype: np.dtype
    is_plain: bool  # whether they are numbers of Python

    def read(self, at: int) -> Any:
        if self.offsets is None:
            value = self.values[at]
        else:
            value = self.values[self.offsets[at] : self.offsets[at + 1]]
        value = value.astype(self.dtype)  # a copy, which may be changed
        if self.is_plain:
            return value.item()
        return value


@dataclass
class _Texts:
    """Texts, None, or lists of plain values, as JSON."""

    values: np.ndarray  # bytes
    offsets: np.ndarray

    def read(self, at: int) -> Any:
        return json.loads(self.values[self.offsets[at] : self.offsets[at + 1]].tobytes())


@dataclass
class _Tuples:
    """Tuples, named tuples or lists of one length: each position is a column."""

    make: Callable[[Iterable], Any]
    columns: "list[_Column]"

    def read(self, at: int) -> Any:
        return self.make([column.read(at) for column in self.columns])


@dataclass
class _Mixed:
    """Values of several forms: each form is a column."""

    form_of: np.ndarray  # of each value, the number of its column
    place: np.ndarray  # and its place there
    columns: "list[_Column]"

    def read(self, at: int) -> Any:
        return self.columns[self.form_of[at]].read(int(self.place[at]))


_Column = _Numbers | _Texts | _Tuples | _Mixed


class StoredFeatures(Sequence):
    """A task's features, one per example; `FeatureWriter` makes the folder.

    A feature is made anew from the file at each access, so it may be changed freely.

    Raises:
      Unstorable: the class of a named tuple is in no module that was imported.
    """

    def __init__(self, folder: Path):
        described = json.loads((folder / "features.json").read_text())
        self.folder = folder
        self._bytes = map_numbers(folder / "features", np.uint8)
        self._makers = [_maker(name, fields) for name, fields in described["classes"]]
        self._blocks = described["blocks"]
        counts = [block["count"] for block in self._blocks]
        self._starts = list(itertools.accumulate(counts, initial=0))
        # Opened when first read, as a view of a mapped file costs more than a number.
        self._opened: dict[int, _Column] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return list(map(self._read, chosen))
        return self._read(chosen)

    def column(self, *path: int) -> np.ndarray:
        """Returns the number or array at a path in the tuples, of all features at once.

        Raises:
          Unstorable: there is none, or its shape is not the same in all features.
        """
        parts = []
        for number in range(len(self._blocks)):
            column = self._open(number)
            for place in path:
                if isinstance(column, _Tuples):
                    column = column.columns[place]
            if not isinstance(column, _Numbers):
                raise Unstorable(f"no number or array of one shape at {path}")
            values = column.values.astype(column.dtype)
            if column.offsets is not None:
                lengths = np.diff(column.offsets)
                if (lengths != lengths[0]).any():
                    raise Unstorable(f"arrays of several lengths at {path}")
                values = values.reshape(len(lengths), lengths[0])
            parts.append(values)
        if len({part.shape[1:] for part in parts}) > 1:
            raise Unstorable(f"arrays of several shapes at {path}")
        return np.concatenate(parts)

    def _read(self, index: int) -> Any:
        number = bisect.bisect_right(self._starts, index) - 1
        return self._open(number).read(index - self._starts[number])

    def _open(self, number: int) -> _Column:
        """Returns the column of whole features of a block."""
        if number not in self._opened:
            self._opened[number] = self._column(self._blocks[number]["column"])
        return self._opened[number]

    def _column(self, described: Json) -> _Column:
        columns = list(map(self._column, described.get("columns", ())))
        arrays: dict[str, np.ndarray] = {}
        for name in ("values", "offsets", "form_of"):
            if name in described:
                arrays[name] = self._array(*described[name])
        if "class" in described:
            return _Tuples(self._makers[described["class"]], columns)
        if "form_of" in described:
            place = np.zeros(len(arrays["form_of"]), np.int64)
            for form in range(len(columns)):
                is_form = arrays["form_of"] == form
                place[is_form] = np.arange(is_form.sum())
            return _Mixed(arrays["form_of"], place, columns)
        if "dtype" not in described:
            return _Texts(arrays["values"], arrays["offsets"])
        values = arrays["values"].reshape(-1, *described["shape"])
        dtype = np.dtype(described["dtype"])
        return _Numbers(values, arrays.get("offsets"), dtype, described["plain"])

    def _array(self, dtype: str, start: int, count: int) -> np.ndarray:
        kind = np.dtype(dtype)
        return self._bytes[start : start + count * kind.itemsize].view(kind)


class FeatureWriter:
    """Writes features into a folder, which is complete once its `with` block ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = (folder / "features").open("wb")
        self._classes: dict[tuple[str, int], int] = {}
        self._blocks: list[Json] = []
        # Arrays of this block that need not be written again: the start and the end of tokens have
        # the same offsets, for example.
        self._written: dict[tuple[str, bytes], list] = {}
        self._columns = 0  # of this block

    def add(self, features: Sequence[Any]) -> None:
        """Appends features.

        Raises:
          Unstorable: a value in one of them is neither an array nor plain, or they have more
            arrays than MOST_COLUMNS.
        """
        self._written = {}
        self._columns = 0
        if features:
            self._blocks.append({"count": len(features), "column": self._column(features)})

    def _column(self, values: Sequence[Any]) -> Json:
        """Writes what stands at one place of the features, and returns its description."""
        forms = list(map(_form_of, values))
        numbers = {form: number for number, form in enumerate(dict.fromkeys(forms))}
        if len(numbers) > 1:
            columns = []
            for form in numbers:
                members = [value for value, its in zip(values, forms, strict=True) if its == form]
                columns.append(self._column(members))
            form_of = np.array([numbers[form] for form in forms])
            return {"form_of": self._write(form_of), "columns": columns}
        kind, *rest = forms[0]
        if issubclass(kind, (tuple, list)) and rest:
            columns = [self._column(column) for column in zip(*values, strict=True)]
            return {"class": self._number(values[0]), "columns": columns}
        self._columns += 1
        if self._columns > MOST_COLUMNS:
            raise Unstorable("features of too many arrays")
        if not rest:
            values = [np.frombuffer(json.dumps(value).encode(), np.uint8) for value in values]
            return self._joined(values)
        dtype, shape = rest
        described = {"dtype": dtype.str, "plain": kind in PLAIN, "shape": shape or ()}
        if shape is None:
            return described | self._joined(values)
        try:
            return described | {"values": self._write(np.asarray(values, dtype))}
        except OverflowError:
            raise Unstorable("a whole number of more than 64 bits") from None

    def _joined(self, arrays: Sequence[np.ndarray]) -> Json:
        """Writes arrays of different lengths as one, and where each begins."""
        offsets = np.cumsum([0, *map(len, arrays)])
        return {"values": self._write(np.concatenate(arrays)), "offsets": self._write(offsets)}

    def _number(self, value: Any) -> int:
        """Returns the number of the class of a tuple, list or named tuple.

        Raises:
          Unstorable: it is of another class.
        """
        kind = type(value)
        name = kind.__name__
        fields = 0
        if kind not in TREES.values():
            name = f"{kind.__module__}:{kind.__qualname__}"
            fields = len(value)
            if not hasattr(value, "_fields") or "<" in name:
                raise Unstorable(f"a {kind.__name__}")
        return self._classes.setdefault((name, fields), len(self._classes))

    def _write(self, array: np.ndarray) -> list:
        """Writes an array in as few bytes as hold its numbers, and returns where it is."""
        array = array.astype(_narrowest(array))
        content = array.tobytes()
        key = array.dtype.str, content
        if key not in self._written:
            self._written[key] = [array.dtype.str, self._file.tell(), array.size]
            self._file.write(content + b"\0" * (-len(content) % ALIGNED))
        return self._written[key]

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._file.close()
        if kind is None:
            described = {"classes": list(self._classes), "blocks": self._blocks}
            (self._folder / "features.json").write_text(json.dumps(described))


def _form_of(value: Any) -> tuple:
    """Returns what values of one column have in common.

    It is their class; the length of a tuple; the dtype and shape of a number or array, None for one
    axis of any length.

    Raises:
      Unstorable: the value is neither an array nor plain.
    """
    kind = type(value)
    if kind in (int, float, bool):
        return kind, np.dtype(kind), ()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        if value.ndim == 1:
            return kind, value.dtype, None
        return kind, value.dtype, value.shape
    if kind in PLAIN or (kind is list and all(type(item) in PLAIN for item in value)):
        return (kind,)
    if isinstance(value, (tuple, list)):
        return kind, len(value)
    raise Unstorable(f"a {kind.__name__}")


def _narrowest(array: np.ndarray) -> np.dtype:
    """Returns the smallest dtype that holds the numbers of an array."""
    if array.dtype.kind not in "iu" or not array.size:
        return array.dtype
    lowest = int(array.min())
    highest = int(array.max())
    if lowest >= 0:
        return np.min_scalar_type(highest)
    return np.min_scalar_type(min(lowest, ~highest))  # the least number of as many bits


def _maker(name: str, fields: int) -> Callable[[Iterable], Any]:
    """Returns what makes a tuple, a list or a named tuple whose module the program has imported.

    Nothing is imported, as a cache may be shared with others, who write its names.
    """
    if name in TREES:
        return TREES[name]
    module, _, path = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, "__dict__", {}).get(part)  # not by getattr: a module may import then
    is_tuple = isinstance(cls, type) and issubclass(cls, tuple)
    if not is_tuple or len(getattr(cls, "_fields", ())) != fields:
        raise Unstorable(f"{name} is not a named tuple of {fields} fields that was imported")
    return lambda values: cls(*values)
