"""The features of a task in memory-mapped files.

A feature is a tree of tuples and lists with arrays and plain values as leaves. Features are written
in blocks of one form. Of each leaf, a block holds the values of all its features as one array, so
that the labels of a million features are read at once, and numbers take no more bytes than they
need. The arrays stand one after another in the file `features`, `features.json` says what they are,
and `positions` is the place of each feature among those of all blocks.
"""

import bisect
import functools
import itertools
import json
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flaxformer_lite.data.stored import Unstorable, map_numbers
from flaxformer_lite.files.read import Json

MOST_COLUMNS = 256  # arrays of a block; with more, their description is larger than they are
ALIGNED = 8  # bytes; numpy reads numbers at other addresses more slowly
PLAIN = (str, int, float, bool, type(None))
TREES = {"tuple": tuple, "list": list}


@dataclass(frozen=True, eq=False)
class Leaf:
    """The form of a leaf in all features that have it; `_leaf` makes one."""

    kind: str  # array, plain (a number of Python) or json (a text, or a list of plain values)
    dtype: np.dtype
    shape: tuple[int, ...] | None  # None: one axis, of any length


@functools.cache  # so that equal ones are the same, and features are soon sorted by their leaves
def _leaf(kind: str, dtype: np.dtype, shape: tuple[int, ...] | None = ()) -> Leaf:
    return Leaf(kind, dtype, shape)


@dataclass
class _Column:
    """The values of a leaf in the features of a block."""

    leaf: Leaf
    values: np.ndarray
    offsets: np.ndarray | None  # of each value, if their lengths differ

    def read(self, at: int) -> Any:
        leaf = self.leaf
        if self.offsets is None:
            value = self.values[at]
        else:
            value = self.values[self.offsets[at] : self.offsets[at + 1]]
        if leaf.kind == "json":
            return json.loads(value.tobytes())
        value = value.astype(leaf.dtype)  # a copy, which may be changed
        if leaf.kind == "plain":
            return value.item()
        return value


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
        self._positions = map_numbers(folder / "positions", np.int64)
        self._forms = [_tree_from_json(form) for form in described["forms"]]
        self._blocks = described["blocks"]
        counts = [block["count"] for block in self._blocks]
        self._starts = list(itertools.accumulate(counts, initial=0))
        # Opened when first read, as a view of a mapped file costs more than a number.
        self._opened: dict[int, tuple[Any, list[_Column]]] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int | slice) -> Any:
        positions = self._positions[index]
        if isinstance(index, slice):
            return list(map(self._read, positions.tolist()))
        return self._read(int(positions))

    def column(self, *path: int) -> np.ndarray:
        """Returns the number or array at a path in the tuples, of all features at once.

        Raises:
          Unstorable: there is none, or its shape is not the same in all features.
        """
        parts = []
        for number in range(len(self._blocks)):
            tree, columns = self._open(number)
            leaf = functools.reduce(operator.getitem, path, tree.unflatten(columns))
            if not isinstance(leaf, _Column) or leaf.offsets is not None:
                raise Unstorable(f"no number or array of one shape at {path}")
            parts.append(leaf.values.astype(leaf.leaf.dtype))
        return np.concatenate(parts)[self._positions]

    def _read(self, position: int) -> Any:
        number = bisect.bisect_right(self._starts, position) - 1
        tree, columns = self._open(number)
        at = position - self._starts[number]
        return tree.unflatten([column.read(at) for column in columns])

    def _open(self, number: int) -> tuple[Any, list[_Column]]:
        """Returns the tree of the features of a block, and its arrays."""
        if number not in self._opened:
            block = self._blocks[number]
            leaves, tree = jax.tree.flatten(self._forms[block["form"]])
            columns = []
            for leaf, (values, offsets) in zip(leaves, block["columns"], strict=True):
                array = self._array(*values).reshape(-1, *(leaf.shape or ()))
                columns.append(_Column(leaf, array, offsets and self._array(*offsets)))
            self._opened[number] = tree, columns
        return self._opened[number]

    def _array(self, dtype: str, start: int, count: int) -> np.ndarray:
        kind = np.dtype(dtype)
        return self._bytes[start : start + count * kind.itemsize].view(kind)


class FeatureWriter:
    """Writes features into a folder, which is complete once its `with` block ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = (folder / "features").open("wb")
        self._positions = (folder / "positions").open("wb")
        self._count = 0
        self._numbers: dict[tuple, int] = {}
        self._forms: list[Json] = []
        self._blocks: list[Json] = []

    def add(self, features: Sequence[Any]) -> None:
        """Appends features.

        Raises:
          Unstorable: a value in one of them is neither an array nor plain, or they have more
            arrays than MOST_COLUMNS.
        """
        groups: dict[tuple, list[tuple]] = {}
        for at, feature in enumerate(features):
            values, tree = jax.tree.flatten(feature, is_leaf=_is_json)
            groups.setdefault((tree, *map(_leaf_of, values)), []).append((at, *values))
        if sum(len(leaves) for _, *leaves in groups) > MOST_COLUMNS:
            raise Unstorable("features of too many arrays")
        positions = np.zeros(len(features), np.int64)
        written: dict[tuple[str, bytes], list] = {}
        for form, members in groups.items():
            places, *values_by_leaf = zip(*members, strict=True)
            positions[list(places)] = self._count + np.arange(len(places))
            self._count += len(places)
            columns = []
            for leaf, group in zip(form[1:], values_by_leaf, strict=True):
                array, offsets = _joined(leaf, group)
                columns.append([self._write(array, written), self._write(offsets, written)])
            block = {"form": self._number(form), "count": len(places), "columns": columns}
            self._blocks.append(block)
        self._positions.write(positions.tobytes())

    def _number(self, form: tuple) -> int:
        if form not in self._numbers:
            tree, *leaves = form
            self._forms.append(_tree_to_json(tree.unflatten(leaves)))
            self._numbers[form] = len(self._numbers)
        return self._numbers[form]

    def _write(self, array: np.ndarray | None, written: dict[tuple, list]) -> list | None:
        """Writes an array in as few bytes as hold its numbers, and returns where it is.

        Args:
          array: of any shape.
          written: those that need not be written again; ids and their types have the same offsets,
            for example.
        """
        if array is None:
            return None
        array = array.astype(_narrowest(array))
        content = array.tobytes()
        key = array.dtype.str, content
        if key not in written:
            written[key] = [array.dtype.str, self._file.tell(), array.size]
            self._file.write(content + b"\0" * (-len(content) % ALIGNED))
        return written[key]

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._file.close()
        self._positions.close()
        if kind is None:
            described = {"forms": self._forms, "blocks": self._blocks}
            (self._folder / "features.json").write_text(json.dumps(described))


def _is_json(value: Any) -> bool:
    return type(value) is list and all(type(item) in PLAIN for item in value)


def _leaf_of(value: Any) -> Leaf:
    kind = type(value)
    if kind is np.ndarray and value.ndim == 1 and value.dtype.kind in "biuf":
        return _leaf("array", value.dtype, None)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return _leaf("array", value.dtype, value.shape)
    if kind in (int, float, bool):
        return _leaf("plain", np.dtype(kind))
    if kind is str or kind is list:
        return _leaf("json", np.dtype(np.uint8), None)
    raise Unstorable(f"a {kind.__name__}")


def _joined(leaf: Leaf, values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns values of a leaf as one array, and where each begins if their lengths differ."""
    if leaf.shape is not None:
        try:
            return np.asarray(values, leaf.dtype), None
        except OverflowError:
            raise Unstorable("a whole number of more than 64 bits") from None
    if leaf.kind == "json":
        values = [np.frombuffer(json.dumps(value).encode(), np.uint8) for value in values]
    return np.concatenate(values), np.cumsum([0, *map(len, values)])


def _narrowest(array: np.ndarray) -> np.dtype:
    """Returns the smallest dtype that holds the numbers of an array."""
    if array.dtype.kind not in "iu" or not array.size:
        return array.dtype
    lowest = int(array.min())
    highest = int(array.max())
    if lowest >= 0:
        return np.min_scalar_type(highest)
    return np.min_scalar_type(min(lowest, ~highest))  # the least number of as many bits


def _tree_to_json(tree: Any) -> Any:
    """Returns a tree of leaves as JSON.

    Raises:
      Unstorable: a part of it is of another class than tuples, lists and named tuples.
    """
    if tree is None:
        return None
    if isinstance(tree, Leaf):
        return {"leaf": [tree.kind, tree.dtype.str, tree.shape]}
    kind = type(tree)
    name = kind.__name__
    if kind not in TREES.values():
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not hasattr(tree, "_fields") or "<" in name:
            raise Unstorable(f"a {kind.__name__}")
    return {"class": name, "of": list(map(_tree_to_json, tree))}


def _tree_from_json(tree: Any) -> Any:
    if tree is None:
        return None
    if "leaf" in tree:
        kind, dtype, shape = tree["leaf"]
        if shape is not None:
            shape = tuple(shape)
        return _leaf(kind, np.dtype(dtype), shape)
    parts = list(map(_tree_from_json, tree["of"]))
    if tree["class"] in TREES:
        return TREES[tree["class"]](parts)
    return _named_tuple(tree["class"], len(parts))(*parts)


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
