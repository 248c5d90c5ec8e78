"""Reads the TPU compiler's schedule of a hand-written kernel.

The compiler gives no estimate of a Pallas kernel's cycles, but it writes the bundles of
instructions that a core starts in consecutive cycles, and the matrix units that each keeps busy. A
step of the kernel's grid takes as many cycles as it has bundles, or as its matrix products take at
the peak, whichever is more. Waiting for memory is not counted.
"""

import dataclasses
import math
import re
from typing import NamedTuple

SPLIT = "/* core id */"  # stands in kernels whose grid the cores of a chip share
_BUNDLE = re.compile(r"\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:[ >]*\{")
_BRANCH = re.compile(r"sbr\.rel \(!?%\w+\) target = \$region(\d+)")
_START = re.compile(r"Start(?:/End empty)? region (\d+)")
_MATMUL = re.compile(
    r"tpu\.matmul.* : vector<(\d+)x(\d+)x\w+>, vector<(\d+)x(\d+)x\w+>, vector<(\d+)x(\d+)x"
)
_BOUNDS = re.compile(r"iteration_bounds = array<i64: ([-\d, ]+)>")
DELAY = 5  # bundles from a branch on that run whether it is taken or not


class Span(NamedTuple):
    """The bundles from `start` until before `end`."""

    start: int
    end: int

    def contains(self, other: "Span") -> bool:
        return self != other and self.start <= other.start and other.end <= self.end


class Count(NamedTuple):
    """The bundles of a span, and for how many of them the matrix units are busy.

    A bundle that uses half of the units counts as half.
    """

    bundles: int
    busy: float


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The cycles that a core takes for a kernel.

    Attributes:
      grid: sizes of the grid; a negative one depends on the data.
      always: cycles of every step of the grid.
      products: cycles of the matrix products of a step, and of what they depend on. A kernel may
        leave them out, as causal attention does for blocks that see nothing.
      ends: cycles of a step that is the first or the last along the innermost axis of the grid.
      cores: number of cores that share the grid.
    """

    grid: tuple[int, ...]
    always: int
    products: float
    ends: int
    cores: int

    def cycles(self, grid: tuple[int, ...], share: float) -> float:
        """Returns the cycles of a call.

        Args:
          grid: sizes of the grid.
          share: share of the steps that multiply.
        """
        steps = math.prod(grid)
        rows = steps / max(grid[-1], 1)
        total = steps * (self.always + share * self.products) + rows * self.ends
        return total / self.cores


def read(
    bundles: str,
    units: str,
    source: str,
    *,
    forms: tuple[int, ...] = (),
    cores: int,
    peak: float,
) -> Schedule:
    """Reads what the compiler wrote of a kernel.

    Args:
      bundles: its final bundles.
      units: the number of units of each kind that each bundle uses.
      source: the kernel as it was given to the compiler.
      forms: how often a step takes each of several forms of its products, in their order; equally
        often if this is not known. `flash_causal` computes a mask on the diagonal only.
      cores: the number of cores of the chip.
      peak: FLOPs that the matrix units of a core compute in a cycle.

    Raises:
      ValueError: it multiplies, and has a loop in the loop over the grid, whose iterations are not
        known.
    """
    busy = _busy(units)
    loop, conditional, loops_inside = _spans(bundles, len(busy))
    always = 0
    ends = 0
    products = []
    for span in (loop, *conditional):
        inner = [other for other in conditional if span.contains(other)]
        count = _count(span, inner, busy)
        if count.busy:
            products.append(count)
        elif inner or span == loop:
            always += count.bundles
        else:
            ends += count.bundles
    if products and loops_inside:
        raise ValueError("it has a loop of an unknown number of iterations.")
    bounds = _BOUNDS.search(source)
    return Schedule(
        grid=tuple(map(int, bounds[1].split(","))) if bounds else (1,),
        always=always,
        products=_products(products, forms, _flops(source) / peak),
        ends=ends,
        cores=cores if SPLIT in bundles else 1,
    )


def _products(counts: list[Count], forms: tuple[int, ...], ideal: float) -> float:
    """Returns the cycles of a step that multiplies, which runs one of several forms.

    Args:
      counts: the spans with products, one for each form.
      forms: how often each runs; of another number of forms than there are spans, they count
        alike.
      ideal: the cycles that all products take at the peak. A form's part of them is that of its
        busy units.
    """
    if not counts:
        return 0.0
    if len(forms) != len(counts):
        forms = (1,) * len(counts)
    busy = sum(count.busy for count in counts)
    total = 0.0
    for count, times in zip(counts, forms, strict=True):
        least = ideal * count.busy / busy
        total += times * (count.bundles + max(0.0, least - count.busy))
    return total / sum(forms)


def _flops(source: str) -> float:
    """Sums up the FLOPs of all products, [M, K] by [K, N] in any order of the axes."""
    total = 0.0
    for sizes in _MATMUL.findall(source):
        # Each of M, K and N is a size of two of the three arrays.
        total += 2 * math.sqrt(math.prod(map(int, sizes)))
    return total


def _spans(bundles: str, count: int) -> tuple[Span, list[Span], list[Span]]:
    """Returns the loop over the grid, the spans in it that a branch may skip, and loops in it.

    Without a loop the grid has one step, of all `count` bundles.
    """
    starts: dict[int, int] = {}
    branches: list[tuple[int, int]] = []
    address = 0
    for line in bundles.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle:
            address = int(bundle[1], 16)
        for region in _START.findall(line):
            starts[int(region)] = address
        for region in _BRANCH.findall(line):
            branches.append((address, int(region)))
    loops = []
    skipped = []
    for address, region in branches:
        target = starts.get(region, address)
        if target < address:
            loops.append(Span(target, address + DELAY))
        elif target > address:
            skipped.append(Span(address + DELAY, target))
    whole = Span(0, count)
    loop = max(loops, key=lambda span: span.end - span.start, default=whole)
    conditional = [span for span in skipped if loop.contains(span)]
    return loop, conditional, [span for span in loops if loop.contains(span)]


def _busy(units: str) -> list[float]:
    """Returns the share of the matrix units that each bundle uses."""
    _, _, capacity, _, *rows = units.splitlines()
    count = int(capacity.split()[0])
    return [int(row.split()[0]) / count for row in rows if row.strip()]


def _count(span: Span, inner: list[Span], busy: list[float]) -> Count:
    """Counts the bundles of a span outside the inner ones."""
    outside = set(range(*span))
    for other in inner:
        outside -= set(range(*other))
    return Count(len(outside), sum(busy[address] for address in outside if address < len(busy)))
