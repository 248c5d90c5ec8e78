"""Reads the operations of a program, and the time that each took, from a trace of the profiler.

A trace holds a plane for each device. Those of TPUs have a line of operations, those of GPUs a line
for each stream, and the operations of a CPU are among all else that the host's threads do.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flaxformer_lite.analysis import hlo, parts

CONTAINERS = ("while", "conditional", "call")  # what runs in them has events of its own
LARGEST = 15  # rows of a table, and most letters of a source
WIDEST = 60
_NAME = re.compile(r"%?([\w.\-]+)")


@dataclasses.dataclass
class Row:
    """The events of one operation, or of several.

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
    return {
        op.name: op for computation in hlo.parse(text).computations.values() for op in computation
    }


def rows(data: Any, program: str = "") -> tuple[list[Row], int]:
    """Returns the operations of a trace, those that took longest first, and the number of devices
    that ran them.

    Args:
      data: a `jax.profiler.ProfileData`.
      program: name of the program that is traced; those of another, such as evaluation, are one
        row. Empty: of all.
    """
    found: dict[str, Row] = {}
    devices = set()
    for plane, event, op, stats in _events(data):
        of = stats.get("hlo_module", program)
        key = op if of == program or not program else f"program {of}"
        row = found.setdefault(key, Row(key))
        row.seconds = row.seconds + event.duration_ns / 1e9
        row.count = row.count + 1
        row.flops = row.flops + stats.get("flops", 0)
        row.bytes = row.bytes + stats.get("bytes_accessed", 0)
        devices.add((plane, stats.get("device_ordinal")))
    return _largest(found), len(devices)


def by_part(found: Iterable[Row], ops: Mapping[str, hlo.Op]) -> list[Row]:
    """Sums rows by the part of the model that they are from; other programs are parts of their
    own."""
    summed: dict[str, Row] = {}
    for row in found:
        name = parts.part(ops[row.name].source) if row.name in ops else row.name
        total = summed.setdefault(name, Row(name))
        total.seconds = total.seconds + row.seconds
        total.count = total.count + row.count
    return _largest(summed)


def source(op: hlo.Op) -> str:
    """Names the modules and the JAX operation that an operation is from, without the methods
    between them."""
    whole = op.source.partition(";")[0]
    names = dict.fromkeys(name for name in whole.split("/") if name and not set("(.") & set(name))
    return ("backward " if "transpose(" in whole else "") + "/".join(names)[-WIDEST:]


def name(text: str) -> str:
    """Returns the name of a compiled program."""
    found = re.match(r"HloModule ([\w.\-]+)", text)
    return found[1] if found else ""


def table(found: list[Row], ops: Mapping[str, hlo.Op], runs: int) -> list[str]:
    """Returns the largest operations as lines of text.

    Args:
      ops: the operations of the program by name, as far as they are known.
      runs: number of steps in the trace, times the number of devices in it.
    """
    whole = sum(row.seconds for row in found)
    cells = [["share", "ms a step", "times", "operation", "kind", "result", "rate", "from"]]
    for row in found[:LARGEST]:
        op = ops.get(row.name)
        result = (
            "".join(f"{a.dtype}{list(a.shape)}".replace(" ", "") for a in op.arrays[:1])
            if op
            else ""
        )
        rates = [
            f"{number / row.seconds / unit:.3g} {name}"
            for number, unit, name in ((row.flops, 1e12, "TFLOP/s"), (row.bytes, 1e9, "GB/s"))
            if number
        ]
        cells.append(
            [
                *_figures(row, whole, runs),
                row.name,
                op.kind if op else "",
                result,
                ", ".join(rates),
                source(op) if op else "",
            ]
        )
    summed = [[*_figures(row, whole, runs), row.name] for row in by_part(found, ops)[:LARGEST]]
    return [
        *_aligned(cells),
        "",
        *_aligned([["share", "ms a step", "times", "part of the step"], *summed]),
    ]


def _figures(row: Row, whole: float, runs: int) -> list[str]:
    return [
        f"{row.seconds / whole:.1%}",
        f"{1e3 * row.seconds / runs:.3f}",
        f"{row.count / runs:g}",
    ]


def _aligned(cells: list[list[str]]) -> list[str]:
    """Pads columns to a width, numbers from the left; leaves out those that are empty below their
    title."""
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    padded = []
    for at, column in enumerate(columns):
        width = max(map(len, column))
        padded.append([text.rjust(width) if at < 3 else text.ljust(width) for text in column])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def _largest(found: Mapping[str, Row]) -> list[Row]:
    return sorted(found.values(), key=lambda row: -row.seconds)


def _events(data: Any) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    """Yields (plane, event, operation, stats) of all that ran."""
    planes = list(data.planes)
    devices = [plane for plane in planes if re.match(r"/device:[TG]PU:\d", plane.name)]
    for plane in devices or (plane for plane in planes if plane.name == "/host:CPU"):
        lines = list(plane.lines)
        for line in [line for line in lines if line.name == "XLA Ops"] or lines:
            for event in line.events:
                stats = dict(event.stats)
                if line.name == "XLA Ops" or "hlo_op" in stats:
                    found = _NAME.match(stats.get("hlo_op", event.name))
                    op = found[1] if found else event.name
                    if op.partition(".")[0] not in CONTAINERS:
                        yield plane.name, event, op, stats
