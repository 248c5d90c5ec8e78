"""Assigns the rows of a mixture to sources, as a function of the row number.

Rows are cut into segments of constant shares, and those into blocks. The rows of each source before
a block are its shares of the rows before, rounded to whole rows by largest remainders; inside, the
row goes to the source with the earliest deadline, where the k-th of n rows of a source in a block
of B is due between k B / n and (k + 1) B / n (Baruah et al. 1996, "Proportionate Progress: A Notion
of Fairness in Resource Allocation"). Any row is found without computing those of earlier blocks. A
source has its exact share within one row where a block ends, and within two inside it.
"""

import bisect
import functools
import heapq
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.objectives.sums import SOURCE

BLOCK = 1 << 14  # rows
# A smaller share counts as 0, so that every source has rows in each block.
LEAST_SHARE = Fraction(2, BLOCK)
FOREVER = 1 << 62  # rows


class Stage(NamedTuple):
    """Weights from a given row until the next stage."""

    row: int
    weights: tuple[float, ...]  # of each source; they need not add up to 1


class _Segment(NamedTuple):
    row: int
    length: int
    before: list[int]  # rows of each source before it
    left: list[int]  # the most rows of each source from here on
    shares: list[Fraction]  # of each source; together one

    def counts(self, rows: int) -> list[int]:
        """Returns the rows of each source among the first `rows` of the segment."""
        exact = [share * rows for share in self.shares]
        counts = [int(amount) for amount in exact]
        remainders = [count - amount for count, amount in zip(counts, exact, strict=True)]
        rest = rows - sum(counts)
        for source in sorted(range(len(counts)), key=remainders.__getitem__):
            if rest and counts[source] < self.left[source]:
                counts[source] += 1
                rest -= 1
        return counts


class Interleaving:
    """Assigns rows to sources by weights, until their limits are reached.

    The share of a source that has reached its limit is divided among the others by their weights.

    Args:
      stages: the weights; the first stage begins at row 0.
      limits: the most rows of each source, or None.

    Attributes:
      total: the number of rows until all sources with a weight have reached their limits; None if
        there is no end.
    """

    def __init__(self, stages: Sequence[Stage], limits: Sequence[int | None]):
        self._segments = _plan(stages, [FOREVER if limit is None else limit for limit in limits])
        self._starts = [segment.row for segment in self._segments]
        end = self._segments[-1].row + self._segments[-1].length
        self.total: int | None = end
        if end >= FOREVER:
            self.total = None
        self._block = functools.lru_cache(maxsize=8)(self._make_block)

    def find(self, row: int) -> tuple[int, int]:
        """Returns the source of a row, and the number of earlier rows of that source."""
        segment, block, place = self._place(row)
        sources, numbers = self._block(segment, block)
        return int(sources[place]), int(numbers[place])

    def shares(self, row: int) -> list[float]:
        """Returns the share of each source at a row."""
        return [float(share) for share in self._segments[self._place(row)[0]].shares]

    @property
    def largest_shares(self) -> list[float]:
        """The largest share that each source has at any row."""
        of_segments = [segment.shares for segment in self._segments]
        return [float(max(shares)) for shares in zip(*of_segments, strict=True)]

    def counts(self, row: int) -> list[int]:
        """Returns the number of rows of each source before a row."""
        number, block, place = self._place(row)
        segment = self._segments[number]
        given = np.add(segment.before, segment.counts(block * BLOCK))
        if place:
            sources = self._block(number, block)[0][:place]
            given += np.bincount(sources, minlength=len(given))
        return given.tolist()

    def _place(self, row: int) -> tuple[int, int, int]:
        """Returns the segment of a row, its block there, and the row's number in the block."""
        number = bisect.bisect_right(self._starts, row) - 1
        offset = row - self._starts[number]
        # A last block that is not full is part of the one before it, so that no count falls.
        block = min(offset // BLOCK, max(self._segments[number].length // BLOCK - 1, 0))
        return number, block, offset - block * BLOCK

    def _make_block(self, number: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Assigns the rows of a block, each to the source with the earliest deadline."""
        segment = self._segments[number]
        begin = block * BLOCK
        end = begin + BLOCK
        if segment.length - end < BLOCK:
            end = segment.length
        size = end - begin
        first = np.add(segment.before, segment.counts(begin)).tolist()
        goal = np.add(segment.before, segment.counts(end)).tolist()
        given = list(first)
        coming = list[tuple[int, int, int]]()  # the next row of each source: release and deadline
        ready = list[tuple[int, int]]()  # those released: deadline and source

        def schedule_next(source: int) -> None:
            done = given[source] - first[source]
            count = goal[source] - first[source]
            if done < count:
                deadline = -(-(done + 1) * size // count)
                heapq.heappush(coming, (done * size // count, deadline, source))

        for source in range(len(given)):
            schedule_next(source)
        sources = np.zeros(size, np.int32)
        numbers = np.zeros(size, np.int64)
        for row in range(size):
            while coming and coming[0][0] <= row:
                heapq.heappush(ready, heapq.heappop(coming)[1:])
            _, source = heapq.heappop(ready)
            sources[row] = source
            numbers[row] = given[source]
            given[source] += 1
            schedule_next(source)
        return sources, numbers


def _plan(stages: Sequence[Stage], limits: Sequence[int]) -> list[_Segment]:
    """Lists the segments of constant shares: a stage until it, or one of its sources, ends."""
    segments = list[_Segment]()
    row = 0
    before = [0] * len(limits)
    ends = [*(stage.row for stage in stages[1:]), FOREVER]
    for stage, end in zip(stages, ends, strict=True):
        while row < end:
            left = [limit - count for limit, count in zip(limits, before, strict=True)]
            shares = _divide(stage.weights, left)
            length = min(end - row, sum(left))
            for rest, share in zip(left, shares, strict=True):
                if share:
                    length = min(length, -(-rest * share.denominator // share.numerator))
            if not any(shares):
                length = 0
            segment = _Segment(row, length, before, left, shares)
            segments.append(segment)
            if not length:
                return segments
            before = np.add(before, segment.counts(length)).tolist()
            row += length
    return segments


def _divide(weights: Sequence[float], left: Sequence[int]) -> list[Fraction]:
    """Returns the shares of the sources that have rows left, without those below LEAST_SHARE."""
    # Fractions, so that the counts before any block are exact however far it is from row 0.
    exact = [Fraction(weight) * bool(rest) for weight, rest in zip(weights, left, strict=True)]
    whole = sum(exact)
    kept = [weight if weight >= whole * LEAST_SHARE else Fraction(0) for weight in exact]
    return [weight / (sum(kept) or 1) for weight in kept]


def tag_source(example: Example, sources: Collection[str], source: str) -> Example:
    """Marks an example with its source, so that the loss can be summed by source.

    An example of a single source is returned as it is.
    """
    if len(sources) < 2:
        return example
    tags: dict[str, Any] = {f"{SOURCE}{name}": np.bool_(name == source) for name in sources}
    return {**example, "targets": {**example["targets"], **tags}}
