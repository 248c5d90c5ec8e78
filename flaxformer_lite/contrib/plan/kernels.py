"""Times the hand-written TPU kernels of a compiled program.

Each kernel is compiled once more, alone, in a process whose TPU compiler writes down its schedules:
it reads that option only once per process, and for a whole program the files would be gigabytes.
"""

import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan import kernel_schedule
from flaxformer_lite.contrib.plan.costs import KERNEL, STREAMING
from flaxformer_lite.contrib.plan.environment import ENVIRONMENT
from flaxformer_lite.contrib.plan.kernel_schedule import Schedule
from flaxformer_lite.contrib.plan.topology import BY_CORES, Chip
from flaxformer_lite.nn.functions.tuning import FORMS, LANES

LOG = logging.getLogger("flaxformer_lite")
COMPILER = "flaxformer_lite.contrib.plan.compile_kernels"
CONFIG = "backend_config="
METADATA = "kernel_metadata="
# What the TPU compiler writes into the folder of its process. "final" stands in the names of the
# last schedules.
WRITE = (
    "--xla_jf_dump_to=.",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=final",
    "--xla_mosaic_dump_to=sources",
)
SECONDS = 120  # after which a kernel is given up
_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?\})\}")


class Kernel(NamedTuple):
    """A kernel that a program calls.

    Attributes:
      operands, results: dtypes, as XLA spells them, and shapes.
      config: the call's configuration, JSON, with the kernel's code.
      forms: how often a step takes each of its forms, if the kernel says so (see FORMS).
    """

    operands: tuple[hlo.Array, ...]
    results: tuple[hlo.Array, ...]
    config: str
    forms: tuple[int, ...] = ()


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
            if KERNEL in op.rest and CONFIG in op.rest:
                named[op.name] = kernel_of(op)
    distinct = list(dict.fromkeys(named.values()))
    found = dict(zip(distinct, schedules(distinct, chip), strict=True))
    times = {}
    for name, kernel in named.items():
        schedule = found[kernel]
        if schedule is not None:
            grid = grid_of(schedule, kernel)
            share = causal_share(grid, kernel) if causal else 1.0
            computed = schedule.cycles(grid, share) / chip.clock
            moved = sum(array.bytes for array in kernel.operands + kernel.results)
            times[name] = max(computed, moved / (STREAMING * chip.bandwidth))
    return times


def kernel_of(op: hlo.Op) -> Kernel:
    """Reads a kernel from the text of its call."""
    operands = _OPERANDS.search(op.rest)
    metadata = {}
    if METADATA in op.rest:
        metadata = _json_after(METADATA, op.rest)
    return Kernel(
        operands=hlo.arrays(operands[1] if operands else ""),
        results=op.arrays,
        config=json.dumps(_json_after(CONFIG, op.rest)),
        forms=tuple(json.loads(metadata.get(FORMS, "[]"))),
    )


def _json_after(name: str, text: str) -> dict[str, Any]:
    """Reads the JSON object that follows a name."""
    found: dict[str, Any]
    found, _ = json.JSONDecoder().raw_decode(text, text.index(name) + len(name))
    return found


def grid_of(schedule: Schedule, kernel: Kernel) -> tuple[int, ...]:
    """Returns the sizes of a kernel's grid.

    A size that depends on the data is that of the longest list of numbers among the operands, which
    products of groups have for their blocks of rows.
    """
    lists = [array.shape[0] for array in kernel.operands if len(array.shape) == 1]
    longest = max(lists, default=1)
    return tuple(longest if size < 0 else size for size in schedule.grid)


def causal_share(grid: tuple[int, ...], kernel: Kernel) -> float:
    """Returns the share of the steps that multiply under a causal mask.

    It is that of the blocks on and below the diagonal, where queries [B, N, T, H] meet keys
    [B, K, S, H] in blocks. It is 1 for other kernels, and where the blocks do not cover all keys,
    as with a sliding window.
    """
    heads = [array.shape for array in kernel.operands if len(array.shape) == 4]
    columns = grid[-1]
    if len(heads) < 2 or not columns:
        return 1.0
    batch, count, *_ = heads[0]
    keys = heads[1][2]
    rows, rest = divmod(math.prod(grid), max(1, batch * count * columns))
    if rest or not rows or keys % (columns * LANES):
        return 1.0
    blocks = rows * columns
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
        _compile(kernels, chip, folder)
        found = []
        for number, kernel in enumerate(kernels):
            texts = Path(folder, f"{number}.json")
            found.append(_read(texts, kernel.forms, cores, peak) if texts.exists() else None)
        return found


def _compile(kernels: list[Kernel], chip: Chip, folder: str) -> None:
    """Compiles kernels in a process of its own, which writes N.json for the Nth of them.

    The end of its messages is logged if it fails, as a compiler does that lacks an option.
    """
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    variables = {
        "LIBTPU_INIT_ARGS": " ".join((given, *WRITE)),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
    }
    command = [
        sys.executable,
        "-m",
        COMPILER,
        chip.name,
        folder,
    ]
    try:
        subprocess.run(
            command,
            input=json.dumps([kernel._asdict() for kernel in kernels]),
            text=True,
            capture_output=True,
            check=True,
            timeout=SECONDS * len(kernels),
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **variables},
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        LOG.warning("kernels are not timed: %s", "".join(last) or error)
    except subprocess.TimeoutExpired as error:
        LOG.warning("kernels are not timed: %s", error)


def _read(texts: Path, forms: tuple[int, ...], cores: int, peak: float) -> Schedule | None:
    """Reads a schedule; None if it is of a form that is not known, as of another compiler."""
    parts: dict[str, str] = json.loads(texts.read_text())
    try:
        return kernel_schedule.read(**parts, forms=forms, cores=cores, peak=peak)
    except (ValueError, LookupError, ArithmeticError) as error:
        LOG.warning("a kernel is not timed: %s", error)
        return None
