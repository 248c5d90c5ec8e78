"""Packs batches of padded examples into fewer rows, so that models compute less padding.

The examples of a batch stay padded. They are accompanied by `packing`, an array with the positions
of their tokens side by side in fewer rows, which models compute instead
(models/skeletons/packed_rows.py). Its shape is one of a few, and a function of the lengths of all
examples of the batch, so that it is the same in every process and when the step is repeated.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flaxformer_lite.objectives.rows import PACKING

Batch = dict[str, dict[str, np.ndarray]]
NARROWEST = 32  # fewest columns of a packed row
DRAWS = 200  # most random batches by which shapes are chosen
TEXTS = 40_000  # most texts in these batches
SHAPES = 4  # most shapes; a program is compiled for each
GAIN = 0.06  # the share of the computation that a further shape must save
SPARE = 0.1  # rows of the largest shape beyond the most that the random batches need, as a share
WORTH = 0.9  # packing must reduce the computation to this share of that with padding
# The width of a row at which attention costs about as much as the rest of a small model.
COSTLY_WIDTH = 1024


class Shape(NamedTuple):
    """Packed rows of one group of examples."""

    rows: int
    width: int

    @property
    def cost(self) -> float:
        return self.rows * self.width * (1 + self.width / COSTLY_WIDTH)


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
      filled: expected share of the computed tokens that are not padding.
      mean: expected tokens of a text.
    """

    counts: Callable[[np.ndarray], np.ndarray]
    texts: int
    length: int
    batch_size: int
    ways: int = 1
    accumulate: int = 1
    shapes: tuple[Shape, ...] = ()
    share: float = 1.0
    filled: float = 1.0
    mean: float = 0.0

    @property
    def groups(self) -> int:
        return self.ways * self.accumulate

    def array_shape(self, shape: Shape) -> tuple[int, int, int]:
        return (self.groups, *shape)

    @functools.cached_property
    def _rows_of_groups(self) -> np.ndarray:
        """The rows of a batch in each group, [groups, rows]."""
        split = np.arange(self.batch_size).reshape(self.ways, -1, self.accumulate)
        return split.transpose(0, 2, 1).reshape(self.groups, -1)

    def arrange(self, batch: Batch, examples: np.ndarray, rows: np.ndarray) -> Batch:
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
        texts = self._by_group(examples)
        for shape in sorted(self.shapes, key=lambda shape: shape.cost):
            fits = [first_fit(sizes, shape) for sizes in texts]
            placed = [places for places in fits if places is not None]
            if len(placed) == len(texts):
                slots = [self._slots(texts[group], placed[group], shape) for group in groups]
                return np.stack(slots)
        return None

    def _by_group(self, examples: np.ndarray) -> list[np.ndarray]:
        """Returns the token counts of each group's texts; an empty text counts as one token."""
        counts_BC = np.maximum(self.counts(examples), 1)
        return [counts_BC[group].reshape(-1) for group in self._rows_of_groups]

    def _slots(
        self, sizes: np.ndarray, placed: Sequence[tuple[int, int]], shape: Shape
    ) -> np.ndarray:
        slots = np.full(shape, -1, np.int32)
        for text, (size, (row, column)) in enumerate(zip(sizes, placed, strict=True)):
            first = text * self.length
            slots[row, column : column + size] = np.arange(first, first + size)
        return slots

    def planned(self, batches: np.ndarray, spare: float = SPARE) -> "Packer":
        """Returns a packer with the best shapes, or without shapes if packing does not pay.

        Args:
          batches: the examples of some batches, [batches, batch_size].
          spare: the rows of the largest shape beyond those that these batches need, as a share.
        """
        widths = [self.length]
        while widths[-1] % 2 == 0 and widths[-1] // 2 >= NARROWEST:
            widths.append(widths[-1] // 2)
        texts = [self._by_group(batch) for batch in batches]
        need = np.zeros((len(texts), len(widths)))
        for number, batch in enumerate(texts):
            for column, width in enumerate(widths):
                need[number, column] = max(rows_needed(sizes, width) for sizes in batch)
        padded = Shape(self._rows_of_groups.shape[1] * self.texts, self.length)
        most = int(np.ceil(need[:, 0].max() * (1 + spare)))
        largest = Shape(min(most, padded.rows), self.length)
        candidates = set()
        for width, needs in zip(widths, need.T, strict=True):
            for rows in needs[np.isfinite(needs)]:
                candidates.add(Shape(int(rows), width))

        def costs(shapes: list[Shape]) -> np.ndarray:
            """Returns the cost of each batch in each shape; infinite where it does not fit."""
            columns = []
            for shape in shapes:
                fits = need[:, widths.index(shape.width)] <= shape.rows
                columns.append(np.where(fits, shape.cost, np.inf))
            return np.stack(columns, axis=1)

        ranked = sorted(candidates)
        cost = costs(ranked)
        chosen = [largest]
        best = costs(chosen)[:, 0]
        while len(chosen) < SHAPES:
            after = np.minimum(cost, best[:, None])
            choice = int(after.mean(axis=0).argmin())
            if after[:, choice].mean() > best.mean() * (1 - GAIN):
                break
            chosen.append(ranked[choice])
            best = after[:, choice]
        if best.mean() > WORTH * padded.cost:
            return dataclasses.replace(self, shapes=())
        taken = costs(chosen).argmin(axis=1)
        uses = np.bincount(taken, minlength=len(chosen))
        tokens = np.asarray([chosen[choice].rows * chosen[choice].width for choice in taken])
        real = np.asarray([int(np.concatenate(batch).sum()) for batch in texts])
        order = np.argsort(-uses, kind="stable")
        return dataclasses.replace(
            self,
            shapes=tuple(chosen[i] for i in order),
            share=float(tokens.mean() / (padded.rows * padded.width)),
            filled=float(real.sum() / tokens.sum() / self.groups),
            mean=float(real.mean() / (self.batch_size * self.texts)),
        )


def draws(examples: int, batch_size: int, texts: int) -> np.ndarray:
    """Returns the examples of some random batches, [batches, batch_size]."""
    count = int(np.clip(TEXTS // (batch_size * texts), 16, DRAWS))
    return np.random.default_rng(0).integers(examples, size=(count, batch_size))


def first_fit(sizes: np.ndarray, shape: Shape) -> list[tuple[int, int]] | None:
    """Places texts in rows, the longest first, each in the first row with room for it.

    Returns:
      Row and column of each text; None if they do not all fit.
    """
    if sizes.sum() > shape.rows * shape.width:
        return None
    room = np.full(shape.rows, shape.width)
    placed = [(0, 0)] * len(sizes)
    for text in np.argsort(-sizes, kind="stable"):
        row = int((room >= sizes[text]).argmax())
        if room[row] < sizes[text]:
            return None
        placed[text] = row, shape.width - int(room[row])
        room[row] -= sizes[text]
    return placed


def rows_needed(sizes: np.ndarray, width: int) -> float:
    """Returns the rows of this width that `first_fit` needs; infinity if a text is longer."""
    if sizes.max() > width:
        return np.inf
    room = np.full(len(sizes), width)
    for size in np.sort(sizes)[::-1]:
        room[(room >= size).argmax()] -= size
    return float((room < width).sum())
