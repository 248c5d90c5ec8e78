"""Times the hand-written TPU kernels of a compiled program.

Each kernel is compiled once more, alone, in a process whose TPU compiler writes down its schedules:
it reads that option only once per process, and for a whole program the files would be gigabytes.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.analysis import hlo
from flaxformer_lite.plan import kernel_schedule
from flaxformer_lite.plan.costs import KERNEL, STREAMING
from flaxformer_lite.plan.environment import ENVIRONMENT
from flaxformer_lite.plan.kernel_schedule import Schedule
from flaxformer_lite.plan.topology import BY_CORES, Chip

CONFIG = "backend_config="
# What the TPU compiler writes to which folder. "final" stands in the names of the last schedules.
WRITE = (
    "--xla_jf_dump_to={folder}",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=final",
    "--xla_mosaic_dump_to={folder}/sources",
)
_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?\})\}")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")


class Kernel(NamedTuple):
    """A kernel that a program calls.

    Attributes:
      operands, results: dtypes, as XLA spells them, and shapes.
      config: the call's configuration, JSON, with the kernel's code.
    """

    operands: tuple[hlo.Array, ...]
    results: tuple[hlo.Array, ...]
    config: str


def seconds(module: hlo.Module, chip: Chip, *, causal: bool) -> dict[str, float]:
    """Returns the seconds of a call of each kernel, by the name of the operation.

    Kernels that do not compile alone are left out. Like a fusion that only moves arrays, a kernel
    is taken to move its own at no more than STREAMING of the memory's bandwidth.

    Args:
      module: the compiled program.
      chip: the TPU.
      causal: whether attention sees only earlier positions.
    """
    named: dict[str, Kernel] = {}
    for operations in module.computations.values():
        for op in operations:
            if KERNEL in op.rest:
                named[op.name] = kernel_of(op)
    distinct = list(dict.fromkeys(named.values()))
    found = dict(zip(distinct, schedules(distinct, chip), strict=True))
    times = {}
    for name, kernel in named.items():
        schedule = found[kernel]
        if schedule is not None:
            grid = grid_of(schedule, kernel)
            share = multiplying(grid, kernel) if causal else 1.0
            computed = schedule.cycles(grid, share) / chip.clock
            moved = sum(array.bytes for array in kernel.operands + kernel.results)
            times[name] = max(computed, moved / (STREAMING * chip.bandwidth))
    return times


def kernel_of(op: hlo.Op) -> Kernel:
    """Reads a kernel from the text of its call."""
    operands = []
    listed = _OPERANDS.search(op.rest)
    for dtype, dims in _ARRAY.findall(listed[1] if listed else ""):
        operands.append(hlo.Array(dtype, tuple(map(int, filter(None, dims.split(","))))))
    start = op.rest.index(CONFIG) + len(CONFIG)
    config, _ = json.JSONDecoder().raw_decode(op.rest, start)
    return Kernel(tuple(operands), op.arrays, json.dumps(config))


def grid_of(schedule: Schedule, kernel: Kernel) -> tuple[int, ...]:
    """Returns the sizes of a kernel's grid.

    A size that depends on the data is that of the longest list of numbers among the operands, which
    products of groups have for their blocks of rows.
    """
    lists = [array.shape[0] for array in kernel.operands if len(array.shape) == 1]
    longest = max(lists, default=1)
    return tuple(longest if size < 0 else size for size in schedule.grid)


def multiplying(grid: tuple[int, ...], kernel: Kernel) -> float:
    """Returns the share of the steps that multiply under a causal mask.

    It is that of the blocks on and below the diagonal, where queries [B, N, T, H] meet keys in
    blocks; 1 for other kernels.
    """
    heads = [array.shape for array in kernel.operands if len(array.shape) == 4]
    if not heads:
        return 1.0
    blocks = math.prod(grid) // math.prod(heads[0][:2])
    columns = grid[-1]
    rows, rest = divmod(blocks, columns)
    if rest or not rows:
        return 1.0
    seen = (blocks + rows + columns - math.gcd(rows, columns)) / 2
    return seen / blocks


def schedules(kernels: list[Kernel], chip: Chip) -> list[Schedule | None]:
    """Compiles kernels for a chip, and reads their schedules.

    Returns:
      The schedule of each kernel; None for one that does not compile.
    """
    if not kernels:
        return []
    cores = 2 if chip.name in BY_CORES else 1
    peak = chip.peak / chip.clock / cores
    with tempfile.TemporaryDirectory() as folder:
        listed = json.dumps([kernel._asdict() for kernel in kernels])
        options = " ".join(WRITE).format(folder=folder)
        # A compiler that does not know the options ends the process: no kernel is timed then.
        subprocess.run(
            [sys.executable, "-m", "flaxformer_lite.plan.compile_kernels", chip.name, folder],
            input=listed,
            text=True,
            capture_output=True,
            env={**os.environ, **ENVIRONMENT, "LIBTPU_INIT_ARGS": options},
        )
        read = []
        for number in range(len(kernels)):
            texts = Path(folder, f"{number}.json")
            schedule = None
            if texts.exists():
                parts: dict[str, str] = json.loads(texts.read_text())
                schedule = kernel_schedule.read(**parts, cores=cores, peak=peak)
            read.append(schedule)
        return read
