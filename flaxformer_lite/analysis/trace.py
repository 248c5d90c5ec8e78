"""Reads the operations of a program and their times from a profiler trace.

A trace holds a plane for each device. Those of TPUs have a line of operations, those of GPUs a line
for each stream; a CPU's operations are among the other events of the host's threads.

JAX reads the file (`jax.profiler.ProfileData`). XProf makes tables of operations too, but not by
parts of the model; version 2.24 has no row for a CPU, and installs 58 packages of 354 MB.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from flaxformer_lite.analysis import hlo, parts
from flaxformer_lite.files.read import Json

if TYPE_CHECKING:
    from jax.profiler import ProfileData, ProfileEvent

CONTAINERS = ("while", "conditional", "call")  # the operations in them have their own events
LARGEST = 15  # most rows of a table
WIDEST = 60  # most characters of a source
_NAME = re.compile(r"%?([\w.\-]+)")


@dataclasses.dataclass
class OpTime:
    """The time of one operation, or of several, in a trace.

    Attributes:
      seconds: on all devices together.
      count: the number of events.
      flops, bytes: their sums, where the trace has them; else 0.
    """

    name: str
    seconds: float = 0.0
    count: int = 0
    flops: int = 0
    bytes: int = 0


def operations(text: str) -> dict[str, hlo.Op]:
    """Returns the operations of a compiled program by name."""
    by_name = {}
    for computation in hlo.parse(text).computations.values():
        for op in computation:
            by_name[op.name] = op
    return by_name


def rows(data: "ProfileData", program: str = "") -> tuple[list[OpTime], int]:
    """Returns the operations of a trace, the slowest first, and the number of devices.

    Args:
      data: a `jax.profiler.ProfileData`.
      program: name of the traced program; each other program, such as evaluation, is one row.
        Empty: all programs are traced.
    """
    by_name: dict[str, OpTime] = {}
    devices = set()
    for plane, event, op, stats in _events(data):
        module = stats.get("hlo_module", program)
        is_traced = module == program or not program
        key = op if is_traced else f"program {module}"
        row = by_name.setdefault(key, OpTime(key))
        row.seconds += event.duration_ns / 1e9
        row.count += 1
        row.flops += stats.get("flops", 0)
        row.bytes += stats.get("bytes_accessed", 0)
        devices.add((plane, stats.get("device_ordinal")))
    return _largest(by_name), len(devices)


def by_part(rows: Iterable[OpTime], ops: Mapping[str, hlo.Op]) -> list[OpTime]:
    """Sums rows by the part of the model; each other program is one part."""
    summed: dict[str, OpTime] = {}
    for row in rows:
        name = row.name
        if name in ops:
            name = parts.part(ops[name].source)
        total = summed.setdefault(name, OpTime(name))
        total.seconds += row.seconds
        total.count += row.count
    return _largest(summed)


def source(op: hlo.Op) -> str:
    """Names the modules and the JAX operation of an operation, without the methods between them."""
    path = op.source.partition(";")[0]
    names = dict.fromkeys(name for name in path.split("/") if name and not set("(.") & set(name))
    direction = "backward " if "transpose(" in path else ""
    return direction + "/".join(names)[-WIDEST:]


def name(text: str) -> str:
    """Returns the name of a compiled program."""
    match = re.match(r"HloModule ([\w.\-]+)", text)
    if not match:
        return ""
    return match[1]


def table(rows: list[OpTime], ops: Mapping[str, hlo.Op], runs: int) -> list[str]:
    """Returns the slowest operations as lines of text.

    Args:
      rows: the operations of the trace, from `rows`.
      ops: the operations of the program by name, as far as they are known.
      runs: number of steps in the trace, times the number of devices in it.
    """
    total = sum(row.seconds for row in rows)
    cells = [["share", "ms a step", "times", "operation", "kind", "result", "rate", "from"]]
    for row in rows[:LARGEST]:
        described = ["", "", _rates(row), ""]
        op = ops.get(row.name)
        if op:
            result = "".join(f"{a.dtype}{list(a.shape)}".replace(" ", "") for a in op.arrays[:1])
            described = [op.kind, result, _rates(row), source(op)]
        cells.append([*_figures(row, total, runs), row.name, *described])
    summed = [["share", "ms a step", "times", "part of the step"]]
    for row in by_part(rows, ops)[:LARGEST]:
        summed.append([*_figures(row, total, runs), row.name])
    return [*_aligned(cells), "", *_aligned(summed)]


def _rates(row: OpTime) -> str:
    """Describes the FLOP/s and bytes/s of an operation, as far as they are known."""
    rates = []
    if row.flops:
        rates.append(f"{row.flops / row.seconds / 1e12:.3g} TFLOP/s")
    if row.bytes:
        rates.append(f"{row.bytes / row.seconds / 1e9:.3g} GB/s")
    return ", ".join(rates)


def _figures(row: OpTime, total: float, runs: int) -> list[str]:
    return [
        f"{row.seconds / total:.1%}",
        f"{1e3 * row.seconds / runs:.3f}",
        f"{row.count / runs:g}",
    ]


def _aligned(cells: list[list[str]]) -> list[str]:
    """Pads columns to a width, numbers on the left; drops columns that are empty."""
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    padded = []
    for at, column in enumerate(columns):
        width = max(map(len, column))
        align = str.rjust if at < 3 else str.ljust
        padded.append([align(text, width) for text in column])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def _largest(by_name: Mapping[str, OpTime]) -> list[OpTime]:
    return sorted(by_name.values(), key=lambda row: -row.seconds)


def _events(data: "ProfileData") -> Iterator[tuple[str, "ProfileEvent", str, Json]]:
    """Yields (plane, event, operation, stats) of every operation."""
    planes = list(data.planes)
    devices = [plane for plane in planes if re.match(r"/device:[TG]PU:\d", plane.name)]
    if not devices:
        devices = [plane for plane in planes if plane.name == "/host:CPU"]
    for plane in devices:
        lines = list(plane.lines)
        op_lines = [line for line in lines if line.name == "XLA Ops"]
        for line in op_lines or lines:
            for event in line.events:
                stats = dict(event.stats)
                if line.name != "XLA Ops" and "hlo_op" not in stats:
                    continue
                name = _NAME.match(stats.get("hlo_op", event.name))
                op = name[1] if name else event.name
                if op.partition(".")[0] not in CONTAINERS:
                    yield plane.name, event, op, stats
