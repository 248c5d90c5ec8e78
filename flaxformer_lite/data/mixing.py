"""Divides the rows of a mixture among its sources by their weights, as a function of the row.

With a temperature T, weights are multiplied by size ** (1 / T) (Raffel et al. 2020, T5, section
3.5.2).

A tree of two-way choices: of the first n rows of a node, the left child gets its share of them,
rounded. Any row is found by one walk down the tree, without state. The tree is Huffman's, so that a
source other than the last choice's has at most two thirds of its node, and the errors of rounding,
a half at each node, add up to less than two rows, however many sources there are.
"""

import bisect
import contextlib
import dataclasses
import functools
import heapq
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig
from flaxformer_lite.config.mixture import SourceConfig, read_changes
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.objectives.sums import SOURCE

# A smaller share counts as 0: in a run of few rows it would have none.
LEAST_SHARE = Fraction(1, 1 << 13)
ENDLESS_ROWS = 1 << 62  # rows
MAX_DRIFT = 8  # rows by which a source may differ from its shares, and more
MAX_STAIRS = 100  # most steps by which a linear change of a weight is approximated
FRACTION_BITS = 60  # of the fractions of rows, which are integers to be exact on any machine


class Stage(NamedTuple):
    """Weights from a given row until the next stage."""

    row: int
    weights: tuple[float, ...]  # of each source; they need not add up to 1


class _Node(NamedTuple):
    """A choice between two nodes, or sources.

    Attributes:
      left, right: nodes, or numbers of sources.
      slope: the left one's share of the rows of this node, times 2 ** FRACTION_BITS.
      start: the rows due to the left one before the first row, and a half to round, likewise.
    """

    left: "_Node | int"
    right: "_Node | int"
    slope: int
    start: int

    def of_left(self, rows: int) -> int:
        """Returns how many of the first rows of this node go to the left."""
        return max(0, min(rows, (self.start + rows * self.slope) >> FRACTION_BITS))


class _Segment(NamedTuple):
    """Rows of constant shares.

    Attributes:
      row: the first one.
      before: rows of each source before it.
      shares: of each source, together 1.
      tree: the choices; None if no source has a share.
    """

    row: int
    before: list[int]
    shares: list[Fraction]
    tree: _Node | int | None

    def counts(self, rows: int) -> list[int]:
        """Returns the rows of each source before the mixture's, and among the first of these."""
        counts = list(self.before)
        nodes = [(self.tree, rows)]
        while nodes:
            node, rows = nodes.pop()
            if isinstance(node, _Node):
                left = node.of_left(rows)
                nodes += [(node.left, left), (node.right, rows - left)]
            elif node is not None:
                counts[node] += rows
        return counts

    def find(self, rows: int) -> tuple[int, int]:
        """Returns the source of a row, and the number of earlier rows of that source."""
        node = self.tree
        while isinstance(node, _Node):
            left = node.of_left(rows)
            if node.of_left(rows + 1) > left:
                node = node.left
                rows = left
            else:
                node = node.right
                rows -= left
        if node is None:
            raise IndexError("the mixture has ended")
        return node, self.before[node] + rows


class Mixing:
    """Divides rows among sources by weights, until their limits are reached.

    The share of a source that has reached its limit is divided among the others by their weights.
    At every row each source has the sum of its shares within two rows, and within three where
    weights have changed.

    Args:
      stages: the weights; the first stage begins at row 0.
      limits: the most rows of each source, or None.

    Attributes:
      total: the number of rows until all sources with a weight have reached their limits; None if
        there is no end.
    """

    def __init__(self, stages: Sequence[Stage], limits: Sequence[int | None]):
        self._segments = _plan(
            stages, [ENDLESS_ROWS if limit is None else limit for limit in limits]
        )
        self._starts = [segment.row for segment in self._segments]
        self.total: int | None = None
        if self._segments[-1].tree is None:
            self.total = self._starts[-1]

    def find(self, row: int) -> tuple[int, int]:
        """Returns the source of a row, and the number of earlier rows of that source."""
        segment = self._at(row)
        return segment.find(row - segment.row)

    def counts(self, row: int) -> list[int]:
        """Returns the number of rows of each source before a row."""
        segment = self._at(row)
        return segment.counts(row - segment.row)

    def shares(self, row: int) -> list[float]:
        """Returns the share of each source at a row."""
        return list(map(float, self._at(row).shares))

    @property
    def largest_shares(self) -> list[float]:
        """The largest share that each source has at any row."""
        of_segments = [segment.shares for segment in self._segments]
        return [float(max(shares)) for shares in zip(*of_segments, strict=True)]

    def _at(self, row: int) -> _Segment:
        return self._segments[bisect.bisect_right(self._starts, row) - 1]


def tag_source(example: Example, sources: Collection[str], source: str) -> Example:
    """Marks an example with its source, so that the loss can be summed by source.

    An example of a single source is returned as it is.
    """
    if len(sources) < 2:
        return example
    tags: dict[str, Any] = {f"{SOURCE}{name}": np.bool_(name == source) for name in sources}
    return {**example, "targets": {**example["targets"], **tags}}


def _plan(stages: Sequence[Stage], limits: Sequence[int]) -> list[_Segment]:
    """Lists the segments of constant shares: a stage until it, or one of its sources, ends."""
    segments = list[_Segment]()
    row = 0
    before = [0] * len(limits)
    due = [0] * len(limits)  # times 2 ** FRACTION_BITS
    ends = [*(stage.row for stage in stages[1:]), ENDLESS_ROWS]
    for stage, end in zip(stages, ends, strict=True):
        while row < end:
            has_rows = [count < limit for count, limit in zip(before, limits, strict=True)]
            shares = _divide(stage.weights, has_rows)
            segment = _Segment(row, before, shares, _make_tree(shares, due, before))
            segments.append(segment)
            if segment.tree is None:
                return segments
            length = end - row
            for source, limit in enumerate(limits):
                if shares[source]:
                    near = int((limit - before[source]) / shares[source])
                    slack = int(MAX_DRIFT / shares[source])
                    possible = range(max(0, near - slack), min(length, near + slack))
                    if possible:
                        count = functools.partial(_count, segment, source)
                        at = bisect.bisect_left(possible, limit, key=count)
                        length = possible.start + at
            before = segment.counts(length)
            for source, share in enumerate(shares):
                due[source] += round(share * length * (1 << FRACTION_BITS))
            row += length
    return segments


def _count(segment: _Segment, source: int, rows: int) -> int:
    return segment.counts(rows)[source]


def _make_tree(
    shares: Sequence[Fraction], due: Sequence[int], before: Sequence[int]
) -> _Node | int | None:
    """Joins the two smallest nodes until one is left; None if no source has a share."""
    numbers = itertools.count()  # so that nodes of equal shares are never compared
    nodes: list[tuple[int, int, int, _Node | int]] = []  # share, number, debt, node
    for source, exact in enumerate(shares):
        if exact:
            debt = due[source] - (before[source] << FRACTION_BITS)
            nodes.append((round(exact * (1 << FRACTION_BITS)), next(numbers), debt, source))
    heapq.heapify(nodes)
    while len(nodes) > 1:
        right_share, _, right_debt, right = heapq.heappop(nodes)
        left_share, _, left_debt, left = heapq.heappop(nodes)
        share = left_share + right_share
        debt = left_debt + right_debt
        slope = (left_share << FRACTION_BITS) // share
        # The rows that settle debts are not divided by shares.
        start = left_debt - (debt * left_share) // share + (1 << (FRACTION_BITS - 1))
        node = _Node(left, right, slope, start)
        heapq.heappush(nodes, (share, next(numbers), debt, node))
    return nodes[0][-1] if nodes else None


def _divide(weights: Sequence[float], has_rows: Sequence[bool]) -> list[Fraction]:
    """Returns the shares of the sources that have rows left, without those below LEAST_SHARE."""
    exact = [Fraction(weight) * has for weight, has in zip(weights, has_rows, strict=True)]
    whole = sum(exact)
    kept = [weight if weight >= whole * LEAST_SHARE else Fraction(0) for weight in exact]
    total = sum(kept) or 1
    return [weight / total for weight in kept]


def interleave(sizes: Sequence[int]) -> np.ndarray:
    """Returns an order of the rows of all sources, one after another, that takes them in turn.

    Any prefix of it therefore has as many rows of each source, as long as they last.

    Args:
      sizes: the number of rows of each source.
    """
    turns = Mixing([Stage(0, (1.0,) * len(sizes))], list(sizes))
    orders = [np.random.default_rng(0).permutation(size) for size in sizes]
    starts = np.cumsum([0, *sizes])
    rows = []
    for row in range(starts[-1]):
        source, number = turns.find(row)
        rows.append(orders[source][number] + starts[source])
    return np.asarray(rows)


def data_of_source(data: DataConfig, source: SourceConfig) -> DataConfig:
    """Returns the data section for this source alone."""
    text_field = source.text_field or data.text_field
    if source.corpus:
        text_field = "text"
    return dataclasses.replace(
        data,
        mixture={},
        mixture_temperature=0.0,
        mixture_schedule="",
        path=source.path,
        corpus=source.corpus or data.corpus,
        text_field=text_field,
    )


@contextlib.contextmanager
def naming_source(name: str) -> Iterator[None]:
    """Makes errors name the field of a source instead of a single text's."""
    try:
        yield
    except ConfigError as error:
        field = r"\bdata\.(path|corpus|text_field)(?=[=:])"
        message = re.sub(field, rf"data.mixture.{name}.\1", str(error))
        raise ConfigError(message) from error


def read_stages(cfg: ExperimentConfig, sizes: Mapping[str, int]) -> list[Stage]:
    """Turns weights, temperature and schedule into stages of constant weights.

    A linear change is approximated by at most MAX_STAIRS equal steps.
    """
    data = cfg.data
    size = cfg.train.batch_size
    power = 0.0
    if data.mixture_temperature:
        power = 1 / data.mixture_temperature
    try:
        factors = {name: size**power for name, size in sizes.items()}
    except OverflowError:
        factors = {}
    # Far enough below the largest float, 1.8e308, for products with weights and their sum.
    if max(factors.values(), default=math.inf) > 1e200:
        raise ConfigError(
            f"data.mixture_temperature={data.mixture_temperature:g}: leaves rows to the largest"
            " source only; raise it."
        )
    weights = {name: source.weight for name, source in data.mixture.items()}
    stages = {0: weights}
    for change in read_changes(data.mixture_schedule):
        before = weights
        weights = {**weights, **change.weights}
        stairs = min(MAX_STAIRS, change.end - change.begin)
        for stair in range(stairs):
            # The middle of each stair, so that the rows in all are those of the linear change.
            part = (stair + 0.5) / stairs
            step = change.begin + stair * (change.end - change.begin) // stairs
            between = {}
            for name, weight in weights.items():
                between[name] = (1 - part) * before[name] + part * weight
            stages[step] = between
        stages[change.end] = weights
    in_rows = []
    for step, weights in stages.items():
        products = tuple(weights[name] * factors[name] for name in sizes)
        in_rows.append(Stage(step * size, products))
    return in_rows


def check_shares(data: DataConfig, mixing: Mixing) -> None:
    for name, largest in zip(data.mixture, mixing.largest_shares, strict=True):
        if not largest:
            raise ConfigError(
                f"data.mixture.{name}.weight={data.mixture[name].weight:g}: is less than 1 of"
                f" {int(1 / LEAST_SHARE)} rows, so none would be read; raise it, or leave"
                " the source out."
            )


def check_length(cfg: ExperimentConfig, mixing: Mixing, run_rows: int) -> None:
    """Rejects a run that is longer than the mixture."""
    train = cfg.train
    total = mixing.total
    if total is not None and total < train.batch_size:
        raise ConfigError(
            f"train.batch_size={train.batch_size}: the mixture holds {total:,} rows; lower it, or"
            " raise a source's epochs."
        )
    if total is not None and run_rows > total:
        field = f"steps={train.steps}"
        if train.epochs:
            field = f"epochs={train.epochs:g}"
        raise ConfigError(
            f"train.{field}: needs {run_rows:,} rows, and the mixture holds {total:,} until"
            " its sources reach their epochs; set train.steps to"
            f" {total // train.batch_size} at most,"
            " or raise the epochs of a source (0: without end)."
        )
