"""Batches of padded examples with less padding: packed in fewer rows, or cut to fewer columns.

`Packer` adds to the padded examples an array `packing` with the positions of their tokens side by
side in fewer rows, which models compute instead (models/skeletons/packed_rows.py). `Buckets` is for
what cannot be computed so: it cuts a batch behind its longest example.

A program is compiled for each shape, so a few are chosen from the lengths in the data before the
first step. The shape of a batch is a function of the lengths of all its examples, so it is the same
in every process and whenever the step is repeated.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.rows import PACKING, Example
from flaxformer_lite.types import Batch

MIN_PACKED_COLUMNS = 32  # fewest columns of a packed row
WIDTH_MULTIPLE = 16  # widths of cut batches are multiples of this
MAX_DRAWN_BATCHES = 200  # most random batches by which shapes are chosen
MAX_DRAWN_TEXTS = 40_000  # most texts in these batches
MAX_SHAPES = 4  # most shapes; a program is compiled for each
MIN_SHAPE_GAIN = 0.06  # the share of the computation that a further shape must save
# Rows of the largest shape beyond the most that the random batches need, as a share.
SPARE_ROWS_SHARE = 0.1
MAX_COMPUTED_SHARE = 0.9  # shapes must reduce the computation to this share of that with padding
# The width of a row at which attention costs about as much as the rest of a small model.
COSTLY_WIDTH = 1024
ENCODED = ("input_ids", "attention_mask", "token_type_ids", "segment_ids", "counts")
DECODED = ("decoder_input_ids", "decoder_segment_ids")
LABELS = ("labels", "answers")  # of each token of the decoder side, or else of the only one
MASKS = (("attention_mask", "segment_ids"), ("decoder_segment_ids",))

Widths = tuple[int, ...]
X = TypeVar("X", np.ndarray, jax.Array, jax.ShapeDtypeStruct)


def draw_batches(examples: int, batch_size: int, texts: int) -> np.ndarray:
    """Returns the examples of some random batches, [batches, batch_size]."""
    count = int(np.clip(MAX_DRAWN_TEXTS // (batch_size * texts), 16, MAX_DRAWN_BATCHES))
    # A fixed seed: all processes, and a resumed run, must choose the same shapes.
    return np.random.default_rng(0).integers(examples, size=(count, batch_size))


def _cost(widths: Widths) -> float:
    return sum(width * (1 + width / COSTLY_WIDTH) for width in widths)


def _choose(costs: np.ndarray, padded: float) -> tuple[list[int], np.ndarray]:
    """Chooses shapes, each time the one that saves most.

    Args:
      costs: [batches, shapes], infinite where a batch does not fit; all fit the first shape.
      padded: the cost of a batch with its padding.

    Returns:
      The shapes, the most frequent first, and which of all shapes each batch takes; no shapes if
      they would not pay.
    """
    chosen = [0]
    best = costs[:, 0]
    while len(chosen) < MAX_SHAPES:
        after = np.minimum(costs, best[:, None])
        choice = int(after.mean(axis=0).argmin())
        if after[:, choice].mean() > best.mean() * (1 - MIN_SHAPE_GAIN):
            break
        chosen.append(choice)
        best = after[:, choice]
    taken = costs[:, chosen].argmin(axis=1)
    if best.mean() > MAX_COMPUTED_SHARE * padded:
        return [], taken
    uses = np.bincount(taken, minlength=len(chosen))
    order = np.argsort(-uses, kind="stable")
    return [chosen[place] for place in order], np.asarray(chosen)[taken]


class Shape(NamedTuple):
    """Packed rows of one group of examples."""

    rows: int
    width: int

    @property
    def cost(self) -> float:
        return self.rows * _cost((self.width,))


@dataclass(frozen=True, eq=False)
class Packer:
    """Packs the batches of a split.

    Attributes:
      counts: function of the numbers of examples that returns the tokens of each of their texts,
        [examples, texts].
      texts: number of texts of an example.
      length: columns of a padded text.
      batch_size: number of examples of a batch.
      ways: number of devices that a batch is split over.
      accumulate: number of microbatches of the examples of a device, as in training/step.py.
      shapes: the shapes to choose from, the most frequent first.
      share: expected share of the padded batch that is computed.
    """

    counts: Callable[[np.ndarray], np.ndarray]
    texts: int
    length: int
    batch_size: int
    ways: int = 1
    accumulate: int = 1
    shapes: tuple[Shape, ...] = ()
    share: float = 1.0

    def array_shape(self, shape: Shape) -> tuple[int, int, int]:
        return (self.ways * self.accumulate, *shape)

    def batch_shapes(self, batch: Batch) -> tuple[Batch, ...]:
        """Returns the shapes of a batch in each packing, the most frequent first."""
        batches: list[Any] = []
        for shape in self.shapes:
            packing = jax.ShapeDtypeStruct(self.array_shape(shape), "int32")
            batches.append({**batch, "inputs": {**batch["inputs"], PACKING: packing}})
        return tuple(batches)

    def describe(self) -> str:
        return f"texts side by side: {self.share:.0%} of the padded batch is computed"

    @functools.cached_property
    def _rows_of_groups(self) -> np.ndarray:
        """The rows of a batch in each group, [groups, rows]."""
        # The rows of a microbatch are those of training/step.py: each `accumulate`-th of a device.
        split = np.arange(self.batch_size).reshape(self.ways, -1, self.accumulate)
        return split.transpose(0, 2, 1).reshape(self.ways * self.accumulate, -1)

    def arrange(self, batch: Example, examples: np.ndarray, rows: np.ndarray) -> Example:
        """Adds its packing to the inputs of a batch, unless the batch fits no shape.

        Args:
          batch: the given rows of the batch.
          examples, rows: as in `pack`.
        """
        packing = self.pack(examples, rows)
        if packing is None:
            return batch
        return {**batch, "inputs": {**batch["inputs"], PACKING: packing}}

    def pack(self, examples: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """Packs the groups that consist of `rows`.

        Args:
          examples: the numbers of all examples of the batch.
          rows: the rows of the batch that this process reads.

        Returns:
          The packing, int32 [groups, rows, width]; None if the batch fits no shape, and is computed
          with its padding.
        """
        groups = np.flatnonzero(np.isin(self._rows_of_groups[:, 0], rows))
        sizes_GN = self._sizes(examples)
        for shape in sorted(self.shapes, key=lambda shape: shape.cost):
            placed = [first_fit(sizes_N, shape) for sizes_N in sizes_GN]
            if any(places is None for places in placed):
                continue
            packing = np.full((len(groups), *shape), -1, np.int32)
            for number, group in enumerate(groups):
                for text, (row, column) in enumerate(placed[group] or ()):
                    size = sizes_GN[group, text]
                    first = text * self.length
                    packing[number, row, column : column + size] = np.arange(first, first + size)
            return packing
        return None

    def _sizes(self, examples: np.ndarray) -> np.ndarray:
        """Returns the tokens of each group's texts, [groups, texts]; 1 for an empty text."""
        counts_BC = np.maximum(self.counts(examples), 1)
        return counts_BC[self._rows_of_groups].reshape(len(self._rows_of_groups), -1)

    def planned(self, batches: np.ndarray) -> "Packer":
        """Returns a packer with the best shapes, or without shapes if packing does not pay.

        Args:
          batches: the examples of some batches, [batches, batch_size].
        """
        widths = [self.length]
        while widths[-1] % 2 == 0 and widths[-1] // 2 >= MIN_PACKED_COLUMNS:
            widths.append(widths[-1] // 2)
        sizes_SGN = np.stack([self._sizes(batch) for batch in batches])
        need_SW = np.zeros((len(batches), len(widths)))
        for number, sizes_GN in enumerate(sizes_SGN):
            for place, width in enumerate(widths):
                need_SW[number, place] = max(rows_needed(sizes, width) for sizes in sizes_GN)
        padded = Shape(sizes_SGN.shape[2], self.length)
        most = int(np.ceil(need_SW[:, 0].max() * (1 + SPARE_ROWS_SHARE)))
        candidates = set()
        for width, need_S in zip(widths, need_SW.T, strict=True):
            for rows in need_S[np.isfinite(need_S)]:
                candidates.add(Shape(int(rows), width))
        shapes = [Shape(min(most, padded.rows), self.length), *sorted(candidates)]
        fits = np.stack([need_SW[:, widths.index(width)] <= rows for rows, width in shapes], axis=1)
        costs = np.where(fits, [shape.cost for shape in shapes], np.inf)
        order, taken = _choose(costs, padded.cost)
        tokens = np.prod(shapes, axis=1)[taken]
        return dataclasses.replace(
            self,
            shapes=tuple(shapes[choice] for choice in order),
            share=float(tokens.mean() / np.prod(padded)),
        )


def first_fit(sizes: np.ndarray, shape: Shape) -> list[tuple[int, int]] | None:
    """Places texts in rows, the longest first, each in the first row with room for it.

    Returns:
      Row and column of each text; None if they do not all fit.
    """
    if sizes.sum() > shape.rows * shape.width:
        return None
    room = np.full(shape.rows, shape.width)
    placed = [(0, 0)] * len(sizes)
    # Stable, so that every process places equal sizes alike.
    for text in np.argsort(-sizes, kind="stable"):
        row = int((room >= sizes[text]).argmax())
        if room[row] < sizes[text]:
            return None
        placed[text] = row, shape.width - int(room[row])
        room[row] -= sizes[text]
    return placed


def rows_needed(sizes: np.ndarray, width: int) -> float:
    """Returns the rows of this width that `first_fit` needs; infinity if a text is longer."""
    placed = first_fit(sizes, Shape(len(sizes), width))
    if placed is None:
        return np.inf
    return max(row for row, _ in placed) + 1


@dataclass(frozen=True, eq=False)
class Buckets:
    """Cuts the batches of a split.

    Attributes:
      lengths: columns of a padded example, and of its decoder side if it has one.
      sizes: tokens of each example, [examples, sides].
      sides: which of `lengths` the last axis of an array has, by (part, name) in an example.
      shapes: the widths to choose from, the most frequent first.
      share: expected share of the padded batch that is computed.
    """

    lengths: Widths
    sizes: np.ndarray
    sides: Mapping[tuple[str, str], int]
    shapes: tuple[Widths, ...] = ()
    share: float = 1.0

    def batch_shapes(self, batch: Batch) -> tuple[Batch, ...]:
        """Returns the shapes of a batch that is cut to each width, the most frequent first."""
        return tuple(self.cut(batch, widths) for widths in self.shapes)

    def describe(self) -> str:
        *others, last = [" + ".join(map(str, widths)) for widths in sorted(self.shapes)]
        listed = last
        if others:
            listed = f"{', '.join(others)} or {last}"
        return f"to {listed} tokens, {self.share:.0%} of all columns"

    def arrange(self, batch: Example, examples: np.ndarray, rows: np.ndarray) -> Example:
        """Returns a batch without the columns that are padding in all rows.

        Args:
          batch: the given rows of the batch.
          examples: the numbers of all examples of the batch.
          rows: the rows of the batch that this process reads.

        Raises:
          ConfigError: a row has more tokens than `sizes` says, so that some would be lost.
        """
        longest = self.sizes[examples].max(axis=0)
        fitting = [widths for widths in self.shapes if np.all(longest <= widths)]
        if not fitting:
            return batch
        widths = min(fitting, key=_cost)
        for count, width in zip(columns_used(batch), widths, strict=False):
            if count > width:
                raise ConfigError(
                    f"objective: a row has {count} tokens, of which the task stores at most"
                    f" {width}; store all that `make_example` returns, or set train.packing=False."
                )
        return self.cut(batch, widths)

    def cut(self, batch: Mapping[str, Mapping[str, X]], widths: Widths) -> dict[str, dict[str, X]]:
        """Cuts a batch, or its shapes, to the given widths."""

        def narrow(part: str, name: str, x: X) -> X:
            side = self.sides.get((part, name))
            if side is None:
                return x
            if isinstance(x, jax.ShapeDtypeStruct):
                return x.update(shape=(*x.shape[:-1], widths[side]))
            return x[..., : widths[side]]

        narrowed = {}
        for part, arrays in batch.items():
            narrowed[part] = {name: narrow(part, name, x) for name, x in arrays.items()}
        return narrowed

    def planned(self, batches: np.ndarray, multiple: int = 1) -> "Buckets":
        """Chooses the widths; chooses none if cutting batches would not pay.

        Args:
          batches: the examples of some batches, [batches, batch_size].
          multiple: a divisor of all widths.
        """
        unit = int(np.lcm(WIDTH_MULTIPLE, multiple))

        def rounded(sizes: np.ndarray) -> np.ndarray:
            return np.minimum(np.maximum(-(-sizes // unit), 1) * unit, self.lengths)

        need = rounded(np.stack([self.sizes[batch].max(axis=0) for batch in batches]))
        largest = tuple(rounded(self.sizes.max(axis=0)).tolist())
        widths = [largest, *itertools.product(*(np.unique(side).tolist() for side in need.T))]
        fits = np.stack([(need <= choice).all(axis=1) for choice in widths], axis=1)
        costs = np.where(fits, list(map(_cost, widths)), np.inf)
        order, taken = _choose(costs, _cost(self.lengths))
        columns = np.sum(widths, axis=1)[taken]
        return dataclasses.replace(
            self,
            shapes=tuple(widths[choice] for choice in order),
            share=float(columns.mean() / sum(self.lengths)),
        )


def sides_of(example: Example, lengths: Widths) -> dict[tuple[str, str], int] | None:
    """Returns the side of each array of an example that has a column per token.

    Args:
      example: one of a task.
      lengths: its columns, and its decoder side's if it has one.

    Returns:
      The sides by (part, name); None if the columns of some array are unknown.
    """
    last = len(lengths) - 1
    names = dict.fromkeys(ENCODED, 0) | dict.fromkeys(DECODED, 1) | dict.fromkeys(LABELS, last)
    sides = {}
    labels = example["targets"].get("labels")
    for part, arrays in example.items():
        for name, x in arrays.items():
            side = names.get(name)
            if name == "weights" and labels is not None and np.shape(x) == np.shape(labels):
                side = last
            columns = np.shape(x)[-1:]
            if side is not None and side <= last and columns == (lengths[side],):
                sides[part, name] = side
            elif side is not None or any(columns == (length,) for length in lengths):
                return None
    for side in range(last + 1):
        if not any(("inputs", name) in sides for name in MASKS[side]):
            return None
    return sides


def columns_used(example: Example) -> Widths:
    """Returns the number of columns up to the last token on each side of an example."""
    used = []
    for masks in MASKS:
        for name in masks:
            if name in example["inputs"]:
                mask = np.atleast_2d(example["inputs"][name] != 0)
                used.append(int((mask * np.arange(1, mask.shape[-1] + 1)).max()))
                break
    return tuple(used)
