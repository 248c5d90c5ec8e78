"""Batches of padded examples, cut to the width that their longest example needs, one of a few.

This is for what cannot be computed in packed rows (data/packed_batches.py): a program is compiled
for each width, so widths are chosen from the lengths in the data before the first step. The width
of a batch is a function of the lengths of all its examples, so it is the same in every process and
whenever the step is repeated.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.packed_batches import COSTLY_WIDTH, GAIN, SHAPES, WORTH, Batch

MULTIPLE = 16  # widths are multiples of this
ENCODED = ("input_ids", "attention_mask", "token_type_ids", "segment_ids", "counts")
DECODED = ("decoder_input_ids", "decoder_segment_ids")
LABELS = ("labels", "answers")  # of each token of the decoder side, or else of the only one
MASKS = (("attention_mask", "segment_ids"), ("decoder_segment_ids",))

Widths = tuple[int, ...]
X = TypeVar("X", np.ndarray, jax.Array, jax.ShapeDtypeStruct)


@dataclass(frozen=True, eq=False)
class Buckets:
    """Cuts the batches of a split.

    Attributes:
      lengths: columns of a padded example, and of its decoder side if it has one.
      sizes: tokens of each example, [examples, sides].
      sides: which of `lengths` the last axis of an array has, by (part, name) in an example.
      buckets: the widths to choose from, the most frequent first.
      share: expected share of the padded batch that is computed.
    """

    lengths: Widths
    sizes: np.ndarray
    sides: Mapping[tuple[str, str], int]
    buckets: tuple[Widths, ...] = ()
    share: float = 1.0

    def arrange(self, batch: Batch, examples: np.ndarray, rows: np.ndarray) -> Batch:
        """Returns a batch without the columns that are padding in all rows.

        Args:
          batch: the given rows of the batch.
          examples: the numbers of all examples of the batch.
          rows: the rows of the batch that this process reads.

        Raises:
          ConfigError: a row has more tokens than `sizes` says, so that some would be lost.
        """
        longest = self.sizes[examples].max(axis=0)
        fitting = [widths for widths in self.buckets if np.all(longest <= widths)]
        if not fitting:
            return batch
        widths = min(fitting, key=_cost)
        check_counts(columns_used(batch), widths)
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
        unit = int(np.lcm(MULTIPLE, multiple))

        def rounded(sizes: np.ndarray) -> np.ndarray:
            return np.minimum(np.maximum(-(-sizes // unit), 1) * unit, self.lengths)

        need = rounded(np.stack([self.sizes[batch].max(axis=0) for batch in batches]))
        largest = tuple(rounded(self.sizes.max(axis=0)).tolist())
        needed_widths = [np.unique(column).tolist() for column in need.T]
        candidates = list(itertools.product(*needed_widths))

        def costs(widths: Widths) -> np.ndarray:
            """Returns the cost of each batch at these widths; infinite where it does not fit."""
            return np.where((need <= widths).all(axis=1), _cost(widths), np.inf)

        chosen = [largest]
        best = costs(largest)
        while len(chosen) < SHAPES and candidates:
            choice = min(candidates, key=lambda widths: np.minimum(best, costs(widths)).mean())
            after = np.minimum(best, costs(choice))
            if after.mean() > best.mean() * (1 - GAIN):
                break
            chosen.append(choice)
            best = after
        if best.mean() > WORTH * _cost(self.lengths):
            return dataclasses.replace(self, buckets=())
        taken = np.stack([costs(widths) for widths in chosen]).argmin(axis=0)
        uses = np.bincount(taken, minlength=len(chosen))
        columns = np.asarray([sum(chosen[i]) for i in taken])
        return dataclasses.replace(
            self,
            buckets=tuple(chosen[i] for i in np.argsort(-uses, kind="stable")),
            share=float(columns.mean() / sum(self.lengths)),
        )


def check_counts(used: Widths, limits: Widths) -> None:
    """Checks that no row of a batch has more tokens than its task has counted.

    Raises:
      ConfigError: one has.
    """
    for count, limit in zip(used, limits, strict=False):
        if count > limit:
            raise ConfigError(
                f"objective: a row has {count} tokens, and the task's `tokens` counts at most"
                f" {limit}; count all that `make_example` returns, or set train.packing=False."
            )


def _cost(widths: Widths) -> float:
    return sum(width * (1 + width / COSTLY_WIDTH) for width in widths)


def sides_of(example: Batch, lengths: Widths) -> dict[tuple[str, str], int] | None:
    """Returns the side of each array of an example that has a column per token.

    Args:
      example: one of a task.
      lengths: its columns, and those of its decoder side if it has one.

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


def columns_used(example: Batch) -> Widths:
    """Returns the number of columns up to the last token on each side of an example."""
    used = []
    for masks in MASKS:
        for name in masks:
            if name in example["inputs"]:
                mask = np.atleast_2d(example["inputs"][name] != 0)
                used.append(int((mask * np.arange(1, mask.shape[-1] + 1)).max()))
                break
    return tuple(used)
