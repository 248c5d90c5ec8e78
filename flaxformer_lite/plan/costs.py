"""The cost of a compiled step, from the compiler's own figures: cycles of each fusion, bytes of
each exchange.

The TPU compiler annotates each fusion with a cycle estimate, which is multiplied by the iterations
of the loops around it. Large matrix products come out at 70 to 97 percent of the peak; memory-bound
fusions come out up to four times too slow. The estimate is for comparing designs; it is not a
promise.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping

from flaxformer_lite.analysis import hlo
from flaxformer_lite.analysis.parts import part
from flaxformer_lite.plan.topology import Chip

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
KERNEL = "tpu_custom_call"
# share of the peak, assumed, as the compiler has no estimate for hand-written kernels
KERNEL_EFFICIENCY = 0.5
# number of matrix products in a kernel, by its name
PRODUCTS = (
    ("_fwd", 2),
    ("_dkv", 4),
    ("_dq", 3),
    ("_bwd", 5),
)
FLOATS = re.compile(r"\b(?:bf16|f32)\[([\d,]+)\]")


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
    """

    parts: dict[str, float]
    exchanges: tuple[Exchange, ...]
    unknown: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Returns the time of a step with all traffic hidden behind the computation, and with none
        hidden."""
        compute = sum(self.parts.values())
        fast, slow = (sum(exchange.seconds[i] for exchange in self.exchanges) for i in range(2))
        return max(compute, fast), compute + slow

    @property
    def scheduled(self) -> float:
        """Returns the time of a step if traffic is hidden where the compiled schedule has it beside
        computation."""
        return sum(self.parts.values()) + sum(exchange.exposed for exchange in self.exchanges)

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """Returns the largest costs among computation and traffic, in seconds."""
        traffic = {
            f"{e.kind} over {' x '.join(e.axes) or 'nothing'}": e.seconds[1] for e in self.exchanges
        }
        return sorted({**self.parts, **traffic}.items(), key=lambda item: -item[1])[:count]


def of(
    module: hlo.Module, chip: Chip, mesh: Mapping[str, int], slices: int, *, seen: float = 1.0
) -> Costs:
    """Adds up a compiled step; `seen` is the share of all pairs of positions that attention kernels
    compute."""
    parts: dict[str, float] = collections.defaultdict(float)
    unknown = {visit.scope for visit in hlo.visits(module) if not visit.exact}
    for visit in hlo.visits(module):
        if visit.inside:
            continue
        if cycles := _cycles(visit.op):
            parts[part(visit.op.source)] += cycles * visit.times / chip.clock
        elif f'custom_call_target="{KERNEL}"' in visit.op.rest:
            parts[part(visit.op.source)] += (
                seen * kernel_flops(visit.op) * visit.times / chip.peak / KERNEL_EFFICIENCY
            )
    return Costs(dict(parts), exchanges(hlo.collectives(module), chip, mesh, slices), len(unknown))


def exchanges(
    found: list[hlo.Collective], chip: Chip, mesh: Mapping[str, int], slices: int
) -> tuple[Exchange, ...]:
    """Groups collectives by kind and axes, the largest first."""
    total: dict[tuple, list] = {}
    size = math.prod(mesh.values())
    per_slice = max(1, size // slices)
    for one in found:
        axes = hlo.mesh_axes(one.groups, mesh)
        members = len(one.groups[0]) if one.groups else size
        groups = one.groups or ((0, size - 1),)
        between = any(len({member // per_slice for member in group}) > 1 for group in groups)
        fast, slow = _seconds(one, members, chip, between and slices > 1)
        hidden = one.times * sum(map(_cycles, one.beside)) / chip.clock if one.beside else 0.0
        row = total.setdefault((one.kind, axes), [0, 0, 0.0, 0.0, 0.0])
        for i, amount in enumerate(
            (one.bytes * one.times, one.times, fast, slow, max(0.0, slow - hidden))
        ):
            row[i] += amount
    rows = [
        Exchange(kind, axes, row[0], row[1], (row[2], row[3]), row[4])
        for (kind, axes), row in total.items()
    ]
    return tuple(sorted(rows, key=lambda e: -e.bytes))


def kernel_flops(op: hlo.Op) -> float:
    """Counts the FLOPs of an attention kernel over all pairs of positions, from its name and its
    shapes."""
    products = next((count for mark, count in PRODUCTS if mark in op.name), 0)
    taken = re.search(r"operand_layout_constraints=\{(.*?\})\}", op.rest)
    shapes = (
        [[int(n) for n in dims.split(",")] for dims in FLOATS.findall(taken[1])] if taken else []
    )
    whole = [shape for shape in shapes if len(shape) > 2]
    if not products or len(whole) < 2:
        return 0.0
    return 2.0 * products * math.prod(whole[0]) * whole[1][-2]


def _cycles(op: hlo.Op) -> int:
    found = CYCLES.search(op.rest)
    return int(found[1]) if found else 0


def _seconds(
    one: hlo.Collective, members: int, chip: Chip, between_slices: bool
) -> tuple[float, float]:
    share = {"all-reduce": 2.0, "collective-permute": 1.0}.get(one.kind, 1.0)
    if one.kind != "collective-permute":
        share *= (members - 1) / max(members, 1)
    wire = one.bytes * one.times * share
    if between_slices:
        return wire / chip.network, wire / chip.network
    return wire / (chip.link * chip.axes), wire / chip.link
