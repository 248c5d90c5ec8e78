"""Ahead-of-time compilation for other machines, from a description of their topology."""

import dataclasses
import importlib.metadata
import importlib.util
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from flaxformer_lite.analysis.compiler_messages import capture_stderr, count_rematerialized
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.contrib.plan.topology import Topology
from flaxformer_lite.training.program import Program

SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])B?\b")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The result of a compilation.

    Attributes:
      seconds: compile time.
      peak: peak memory of a chip in bytes; None if the program does not fit.
      excess: the compiler's message if it does not fit, else empty.
      text: the program; empty if it does not fit.
      constraints: number of sharding constraints on activations.
      rematerialised: number of warnings that an array was replicated on every chip to change its
        sharding.
    """

    seconds: float
    peak: int | None
    excess: str
    text: str
    constraints: int
    rematerialised: int


def missing(topology: Topology) -> str:
    """Returns why there is no compiler for a machine, or an empty string."""
    if topology.chip.maker == "gpu":
        return "XLA's compiler for GPUs estimates no times"
    if importlib.util.find_spec("libtpu") is None:
        return "libtpu is not installed: pip install 'flaxformer_lite[tpu-plan]'"
    requirements = importlib.metadata.requires("jax") or ()
    wanted = next((each for each in requirements if each.startswith("libtpu")), "")
    version = re.search(r"==([\d.]+?)\.?\*", wanted)
    have = importlib.metadata.version("libtpu")
    if version and not have.startswith(version[1]):
        return (
            f"libtpu {have} does not match jax {jax.__version__}: pip install"
            f" 'libtpu=={version[1]}.*'"
        )
    return ""


def compiler(topology: Topology) -> str:
    """Returns the compiler's name and version."""
    return f"libtpu {importlib.metadata.version('libtpu')}"


def devices(topology: Topology, slices: int) -> list:
    """Describes the chips of one or several TPU slices.

    Raises:
      ConfigError: the compiler does not know the slice.
    """
    options: dict[str, Any] = {}
    if slices > 1:
        options["num_slices"] = slices
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"
    if topology.count == 1:
        options["chips_per_host_bounds"] = (1,) * topology.chip.axes
        if topology.chip.axes == 2:
            options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        with capture_stderr():
            return list(
                topologies.get_topology_desc(topology.name, platform="tpu", **options).devices
            )
    except Exception as error:  # compilers raise their own types of errors
        raise ConfigError(
            f"--topology={topology.name}: {compiler(topology)} knows no such slice"
            f" ({str(error).splitlines()[0][:120]}); try v5e:4x4, v5e:16x16, v5p:4x4x4 or v6e:8x8."
        ) from None


def compile_step(program: Program) -> Compiled:
    """Compiles the train step for the chips of the mesh, as a run would."""
    with capture_stderr() as captured:
        start = time.perf_counter()
        traced = program.train_step.trace(program.target, program.batch)
        constraints = str(traced.jaxpr).count("sharding_constraint")
        lowered = traced.lower(lowering_platforms=("tpu",))
        try:
            done = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return Compiled(
                seconds=time.perf_counter() - start,
                peak=None,
                excess=_excess(str(error)),
                text="",
                constraints=constraints,
                rematerialised=count_rematerialized(captured()),
            )
        return Compiled(
            seconds=time.perf_counter() - start,
            peak=int(done.memory_analysis().peak_memory_in_bytes),
            excess="",
            text=done.as_text(),
            constraints=constraints,
            rematerialised=count_rematerialized(captured()),
        )


def needed(excess: str, arguments: int) -> int | None:
    """Returns the bytes that a step would have needed by the compiler's message; None if unknown.

    If the message has only those of temporaries, the arguments are added.
    """
    match = re.search(r"Used ([\d.]+[KMGT]) of|temporaries \(([\d.]+[KMGT])\) exceeds", excess)
    size = match and SIZE.match(match[1] or match[2])
    if not match or not size:
        return None
    total = int(float(size[1]) * UNITS[size[2]])
    if match[2]:
        return total + arguments
    return total


def _excess(message: str) -> str:
    lines = message.splitlines()
    about_memory = [line for line in lines if re.search("hbm|exceed", line.lower())]
    first = (about_memory or lines)[0]
    return " ".join(first.split())[:300]
