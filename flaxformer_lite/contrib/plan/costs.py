"""The cost of a compiled step, from the compiler's cycles of fusions and bytes of collectives.

The TPU compiler annotates each fusion with a cycle estimate, which is multiplied by the iterations
of the loops around it. Large matrix products come out at 70 to 97 percent of the peak; memory-bound
fusions come out up to twelve times too slow, and are bounded (STREAMING_SHARE). Hand-written
kernels have no estimate: they are named, and not counted. The estimate is for comparing designs.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan.parts import part
from flaxformer_lite.contrib.plan.topology import Chip

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# What reads memory in another order than it lies, or computes for longer than it reads, as random
# bits do, of which each takes an xor.
IRREGULAR = frozenset(
    ("convolution", "copy", "dot", "gather", "reduce-window", "scatter", "sort", "transpose", "xor")
)
# Share of the memory's bandwidth at which other fusions move their arrays at least. The compiler
# estimates x + y + z at 0.5 to 0.6, but a sum over the first axis at 0.1, though that too reads
# and writes in order.
STREAMING_SHARE = 0.5
# stands in the call of a hand-written kernel
KERNEL = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Exchange:
    """All collectives of one kind along the same mesh axes.

    Attributes:
      kind: one of hlo.KINDS.
      axes: mesh axes.
      bytes: size of the whole arrays per step, as one chip sees them.
      count: number per step.
      seconds: time over all axes of the torus at once, and over one axis.
      exposed: the part of the latter that is not beside computation in the compiled schedule.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    seconds: tuple[float, float]
    exposed: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a step.

    Attributes:
      parts: part of the computation -> seconds per step.
      exchanges: communication, the largest first.
      unknown: number of loops with an unknown number of iterations, which are counted once.
      untimed: names of hand-written kernels whose time is not known and not counted.
    """

    parts: dict[str, float]
    exchanges: tuple[Exchange, ...]
    unknown: int
    untimed: tuple[str, ...] = ()

    @property
    def seconds(self) -> tuple[float, float]:
        """The time of a step with all traffic hidden behind the computation, and with none."""
        compute = sum(self.parts.values())
        fast = sum(exchange.seconds[0] for exchange in self.exchanges)
        slow = sum(exchange.seconds[1] for exchange in self.exchanges)
        return max(compute, fast), compute + slow

    @property
    def scheduled(self) -> float:
        """The time of a step with the traffic hidden that is scheduled beside computation."""
        return sum(self.parts.values()) + sum(exchange.exposed for exchange in self.exchanges)

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """Returns the largest costs among computation and traffic, in seconds."""
        seconds = dict(self.parts)
        for exchange in self.exchanges:
            axes = " x ".join(exchange.axes) or "nothing"
            seconds[f"{exchange.kind} over {axes}"] = exchange.seconds[1]
        return sorted(seconds.items(), key=lambda item: -item[1])[:count]


def of(module: hlo.Module, chip: Chip, mesh: Mapping[str, int], slices: int) -> Costs:
    """Adds up the costs of a compiled step.

    Args:
      module: the compiled program.
      chip: the accelerator.
      mesh: sizes by axis.
      slices: number of slices.
    """
    parts: dict[str, float] = collections.defaultdict(float)
    unknown = {visit.scope for visit in hlo.visits(module) if not visit.exact}
    untimed = []
    named = hlo.by_name(module)
    irregular = hlo.computations_with(module, IRREGULAR)
    for visit in hlo.visits(module):
        if visit.inside:
            continue
        seconds = _cycles(visit.op) / chip.clock if chip.clock else 0.0
        if seconds:
            if visit.op.kind not in IRREGULAR and irregular.isdisjoint(hlo.called(visit.op)):
                seconds = min(seconds, _moved(visit.op, named) / chip.bandwidth / STREAMING_SHARE)
            parts[part(visit.op.source)] += seconds * visit.times
        elif KERNEL in visit.op.rest:
            untimed.append(visit.op.name.partition(".")[0])
    traffic = exchanges(hlo.collectives(module), chip, mesh, slices)
    return Costs(dict(parts), traffic, len(unknown), tuple(dict.fromkeys(untimed)))


def exchanges(
    collectives: list[hlo.Collective], chip: Chip, mesh: Mapping[str, int], slices: int
) -> tuple[Exchange, ...]:
    """Groups collectives by kind and axes, the largest first."""
    total: dict[tuple, list] = {}
    size = math.prod(mesh.values())
    per_slice = max(1, size // slices)
    for each in collectives:
        axes = hlo.mesh_axes(each.groups, mesh)
        members = len(each.groups[0]) if each.groups else size
        groups = each.groups or ((0, size - 1),)
        crosses_slices = False
        for group in groups:
            if len({member // per_slice for member in group}) > 1:
                crosses_slices = slices > 1
        fast, slow = _seconds(each, members, chip, crosses_slices)
        hidden = 0.0
        if each.beside:
            hidden = each.times * sum(map(_cycles, each.beside)) / chip.clock
        row = total.setdefault((each.kind, axes), [0, 0, 0.0, 0.0, 0.0])
        row[0] += each.bytes * each.times
        row[1] += each.times
        row[2] += fast
        row[3] += slow
        row[4] += max(0.0, slow - hidden)
    rows = []
    for (kind, axes), (size, times, fast, slow, exposed) in total.items():
        rows.append(Exchange(kind, axes, size, times, (fast, slow), exposed))
    return tuple(sorted(rows, key=lambda e: -e.bytes))


def _moved(op: hlo.Op, named: Mapping[str, hlo.Op]) -> int:
    """Returns the bytes of an instruction's operands and results.

    Of an array of which only a slice is read or written, it counts all.
    """
    total = op.bytes
    for name in hlo.operands(op):
        if name in named:
            total += named[name].bytes
    return total


def _cycles(op: hlo.Op) -> int:
    match = CYCLES.search(op.rest)
    if not match:
        return 0
    return int(match[1])


def _seconds(
    collective: hlo.Collective, members: int, chip: Chip, between_slices: bool
) -> tuple[float, float]:
    share = 2.0 if collective.kind == "all-reduce" else 1.0
    if collective.kind != "collective-permute":
        share *= (members - 1) / max(members, 1)
    wire = collective.bytes * collective.times * share
    if between_slices:
        return wire / chip.network, wire / chip.network
    return wire / (chip.link * chip.axes), wire / chip.link
