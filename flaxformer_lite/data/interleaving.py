"""Assigns the rows of a mixture to sources, as a function of the row number.

In every prefix of the stream, the number of rows of each source is within one of its exact share.

At row t, source i is due W_i(t) rows, the sum of its shares of the rows before. The schedule gives
it floor(W_i(t)) or ceil(W_i(t)) of them, for all sources and all t. This is proportionate fairness
on one processor (Baruah et al. 1996, "Proportionate Progress: A Notion of Fairness in Resource
Allocation"): the k-th row of a source must lie between the rows where W_i passes k - 1 and k, and
earliest deadline first meets all of these deadlines. Rows are cut into blocks so that any row can
be found without computing all earlier ones: the counts at the beginning of a block follow from the
W_i alone (`Interleaving.counts`).

All amounts are integer multiples of 1 / UNIT rows, so that results are exact on every machine.

A simpler rule would round up the largest fractions at the beginning of a block. In 1,500 random
mixtures it was as fair, but assigned 1 to 3% of the rows to other sources, so that runs begun with
the rule here would not continue with the same batches.
"""

import bisect
import functools
import heapq
import itertools
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

UNIT = 1 << 60  # one row
BLOCK = 1 << 14  # rows
# A smaller share counts as 0, so that every source has rows in each block.
LEAST = 2 * UNIT // BLOCK
FOREVER = 1 << 62  # rows
_Node = tuple[str, int]


class Stage(NamedTuple):
    """Weights from a given row until the next stage."""

    row: int
    weights: tuple[float, ...]  # of each source; they need not add up to 1


class _Segment(NamedTuple):
    row: int
    due: tuple[int, ...]  # UNITs of each source before it
    shares: tuple[int, ...]  # UNITs of each source a row; together one row


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
        self._limits = []
        for limit in limits:
            if limit is None:
                limit = FOREVER
            self._limits.append(limit)
        self._segments = self._plan(stages)
        self.total: int | None = self._segments[-1].row
        if self.total >= FOREVER:
            self.total = None
        self._starts = [segment.row for segment in self._segments]
        self._dues = list(zip(*(segment.due for segment in self._segments), strict=True))
        self._block = functools.lru_cache(maxsize=8)(self._make_block)

    def find(self, row: int) -> tuple[int, int]:
        """Returns the source of a row, and the number of earlier rows of that source."""
        sources, numbers = self._block(row // BLOCK)
        return int(sources[row % BLOCK]), int(numbers[row % BLOCK])

    def shares(self, row: int) -> list[float]:
        """Returns the share of each source at a row."""
        segment = self._segments[bisect.bisect_right(self._starts, row) - 1]
        return [share / UNIT for share in segment.shares]

    @property
    def largest_shares(self) -> list[float]:
        """The largest share that each source has at any row."""
        largest = [0] * len(self._limits)
        for segment in self._segments:
            largest = list(map(max, largest, segment.shares))
        return [share / UNIT for share in largest]

    def counts(self, row: int) -> list[int]:
        """Returns the number of rows of each source before `row`, which must begin a block.

        It is W_i, rounded up or down such that the rows on both sides can meet their deadlines. By
        Hall's theorem, two conditions suffice. Order the sources with a fractional W_i by the
        deadline of the next row, and for every k consider the first k of them: the number of those
        rounded up must be the sum of their fractions, rounded up or down. The same must hold in the
        order in which the current row of each source may first be given.
        """
        amounts = self._due(row)
        counts = [amount // UNIT for amount in amounts]
        parts = [amount % UNIT for amount in amounts]
        fractional = [i for i, part in enumerate(parts) if part]
        deadlines = sorted(fractional, key=lambda i: (self._reaches(i, (counts[i] + 1) * UNIT), i))
        releases = sorted(fractional, key=lambda i: (self._reaches(i, counts[i] * UNIT + 1), i))
        for i in _rounded_up(parts, deadlines, releases):
            counts[i] += 1
        return counts

    def _plan(self, stages: Sequence[Stage]) -> list[_Segment]:
        """Lists the segments of constant shares; the last one begins where no row is left."""
        amounts = [0] * len(self._limits)
        segments = [_Segment(0, (0,) * len(self._limits), (0,) * len(self._limits))]
        ends = [*(stage.row for stage in stages[1:]), FOREVER]
        for stage, end in zip(stages, ends, strict=True):
            while segments[-1].row < end:
                row = segments[-1].row
                left = [limit * UNIT - d for limit, d in zip(self._limits, amounts, strict=True)]
                weights = _drop_small(stage.weights, left)
                shares = _apportion(UNIT, weights, left)
                begun = []  # the rest of the last row of each source that ends here
                for amount, share in zip(amounts, shares, strict=True):
                    rest_of_row = 0
                    if not share:
                        rest_of_row = -amount % UNIT
                    begun.append(rest_of_row)
                length = end - row
                for share, rest in zip(shares, left, strict=True):
                    if share:
                        length = min(length, rest // share)
                if any(begun) or not length:  # one row, in which sources end
                    shares = _divide_row(weights, left, begun)
                    length = 1
                if sum(shares) < UNIT:
                    return segments
                segments[-1] = segments[-1]._replace(shares=tuple(shares))
                amounts = [d + share * length for d, share in zip(amounts, shares, strict=True)]
                segments.append(_Segment(row + length, tuple(amounts), (0,) * len(amounts)))
        return segments

    def _due(self, row: int) -> list[int]:
        segment = self._segments[bisect.bisect_right(self._starts, row) - 1]
        rows = row - segment.row
        return [due + share * rows for due, share in zip(segment.due, segment.shares, strict=True)]

    def _reaches(self, source: int, amount: int) -> int:
        """Returns the first row before which a source is due `amount` UNITs."""
        at = bisect.bisect_left(self._dues[source], amount) - 1
        if at < 0:
            return 0
        segment = self._segments[at]
        share = segment.shares[source]
        if not share:
            return FOREVER
        return segment.row - (segment.due[source] - amount) // share

    def _make_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Assigns the rows of a block, each to the source with the earliest deadline."""
        begin = number * BLOCK
        end = min(begin + BLOCK, self._segments[-1].row)
        given = self.counts(begin)
        goal = self.counts(end)
        # The next row of each source: its release, its deadline, and the source.
        coming = list[tuple[int, int, int]]()
        ready = list[tuple[int, int]]()  # those released: deadline and source

        def schedule_next(i: int) -> None:
            if given[i] < goal[i]:
                first = self._reaches(i, given[i] * UNIT + 1)
                last = self._reaches(i, (given[i] + 1) * UNIT)
                heapq.heappush(coming, (first - 1, min(last, end), i))

        for i in range(len(given)):
            schedule_next(i)
        sources = np.zeros(end - begin, np.int32)
        numbers = np.zeros(end - begin, np.int64)
        for row in range(begin, end):
            while coming and coming[0][0] <= row:
                heapq.heappush(ready, heapq.heappop(coming)[1:])
            _, i = heapq.heappop(ready)
            sources[row - begin] = i
            numbers[row - begin] = given[i]
            given[i] += 1
            schedule_next(i)
        return sources, numbers


def _drop_small(weights: Sequence[float], left: Sequence[int]) -> list[float]:
    """Returns the weights, with 0 where the share would be below LEAST."""
    parts = _apportion(UNIT, weights, left)
    return [weight * (part >= LEAST) for weight, part in zip(weights, parts, strict=True)]


def _apportion(total: int, weights: Sequence[float], left: Sequence[int]) -> list[int]:
    """Divides an integer in proportion to the weights of the sources that have rows left.

    Returns zeros if there are none.
    """
    exact = []
    for weight, rest in zip(weights, left, strict=True):
        if not rest:
            weight = 0
        exact.append(Fraction(weight))
    weight_sum = sum(exact)
    if not weight_sum:
        return [0] * len(exact)
    ends = [int(total * part / weight_sum) for part in itertools.accumulate(exact)]
    return [end - begin for begin, end in itertools.pairwise([0, *ends])]


def _divide_row(weights: Sequence[float], left: Sequence[int], begun: Sequence[int]) -> list[int]:
    """Divides one row among the sources.

    A source that ends with a partial row gets the rest of that row first. The remainder is divided
    by weight; a source with too little left ends with this row.

    Args:
      weights: the weight of each source.
      left: the UNITs until each source's limit.
      begun: the UNITs that complete the last row of each source that ends.
    """
    ends = [min(end, UNIT) for end in itertools.accumulate(begun)]
    shares = [end - begin for begin, end in itertools.pairwise([0, *ends])]
    while sum(shares) < UNIT:
        still = list(map(operator.sub, left, shares))
        parts = _apportion(UNIT - sum(shares), weights, still)
        more = list(map(min, parts, still))
        if not any(more):
            break
        shares = list(map(operator.add, shares, more))
    return shares


def _rounded_up(parts: Sequence[int], *orders: Sequence[int]) -> list[int]:
    """Chooses which fractions to round up, so that prefix sums are rounded in two orders.

    That is, in each order and for every k, the number of choices among the first k is the sum of
    the first k fractions, rounded up or down.

    Laid end to end in one of the orders, the fractions fill whole rows. A choice is a matching:
    each row of the first order is matched to a source whose fraction overlaps it, and that source
    to a row of the second order that it overlaps.
    """
    # for each order: by source, the rows that its fraction overlaps
    covers: list[dict[int, range]] = []
    for order in orders:
        cover = {}
        end = 0
        for i in order:
            begin = end
            end = begin + parts[i]
            cover[i] = range(begin // UNIT, -(-end // UNIT))
        covers.append(cover)
    reaches: dict[_Node, list[_Node]] = {}
    for i, rows in covers[1].items():
        reaches["out", i] = [("in", i), *(("second", row) for row in rows)]
    for i, rows in covers[0].items():
        for row in rows:
            reaches.setdefault(("first", row), []).append(("in", i))
    # At first, none is rounded up.
    taken: dict[_Node, _Node] = {("in", i): ("out", i) for i in covers[0]}

    def match(node: _Node, seen: set[_Node]) -> bool:
        """Matches a node by an augmenting path; returns whether one exists."""
        for other in reaches[node]:
            if other not in seen:
                seen.add(other)
                if other not in taken or match(taken[other], seen):
                    taken[other] = node
                    return True
        return False

    rows_of_first = [node for node in reaches if node[0] == "first"]
    for node in rows_of_first:
        match(node, set())
    return [i for i in covers[0] if taken["in", i][0] == "first"]
