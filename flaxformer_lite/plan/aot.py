"""The compiler of machines that are not there: a topology is described, the step is compiled for it, nothing runs."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.plan import gpu
from flaxformer_lite.plan.topology import Topology
from flaxformer_lite.training.program import Program

REMATERIALISED = "Involuntary full rematerialization"
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])B?\b")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What came of it.

    Attributes:
      seconds: of compilation.
      peak: bytes of a chip at the worst moment; None where the program does not fit.
      excess: the compiler's own words where it does not, else empty.
      text: the program, empty where it does not fit.
      constraints: on the sharding of activations, that the compiler was given.
      rematerialised: warnings that an array had to be made whole on every chip to change how it is split.
    """

    seconds: float
    peak: int | None
    excess: str
    text: str
    constraints: int
    rematerialised: int


def missing(topology: Topology) -> str:
    """Why there is no compiler for such a machine, or nothing."""
    if topology.chip.maker == "gpu":
        return gpu.missing()
    if importlib.util.find_spec("libtpu") is None:
        return "libtpu is not installed: pip install 'flaxformer_lite[tpu-plan]'"
    wanted = next((r for r in importlib.metadata.requires("jax") or () if r.startswith("libtpu")), "")
    version = re.search(r"==([\d.]+?)\.?\*", wanted)
    have = importlib.metadata.version("libtpu")
    if version and not have.startswith(version[1]):
        return f"libtpu {have} does not match jax {jax.__version__}: pip install 'libtpu=={version[1]}.*'"
    return ""


def compiler(topology: Topology) -> str:
    """Its name and version."""
    if topology.chip.maker == "gpu":
        return gpu.compiler()
    return f"libtpu {importlib.metadata.version('libtpu')}"


def devices(topology: Topology, slices: int) -> list:
    """Descriptions of a TPU slice's chips, or of several slices', or of GPUs.

    Raises:
      ConfigError: the compiler knows no such slice.
    """
    if topology.chip.maker == "gpu":
        return gpu.devices(topology)
    options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"
    if topology.count == 1:
        options["chips_per_host_bounds"] = (1,) * topology.chip.axes
        if topology.chip.axes == 2:
            options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        with quiet():
            return list(topologies.get_topology_desc(topology.name, platform="tpu", **options).devices)
    except Exception as error:  # the compiler's own kinds
        raise ConfigError(
            f"--topology={topology.name}: {compiler(topology)} knows no such slice ({str(error).splitlines()[0][:120]}); try"
            f" v5e:4x4, v5e:16x16, v5p:4x4x4 or v6e:8x8."
        ) from None


def compile_step(program: Program) -> Compiled:
    """Compiles the train step, as a run would, for the mesh's chips."""
    with quiet() as noise:
        start = time.perf_counter()
        platform = {"gpu": "cuda"}.get(kind := program.mesh.devices.flat[0].platform, kind)
        traced = program.train_step.trace(program.target, program.batch)
        constraints = str(traced.jaxpr).count("sharding_constraint")
        lowered = traced.lower(lowering_platforms=(platform,))
        try:
            done = lowered.compile({"xla_gpu_autotune_level": 0} if kind == "gpu" else None)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return Compiled(time.perf_counter() - start, None, _excess(str(error)), "", constraints, noise())
        seconds = time.perf_counter() - start
        return Compiled(seconds, _peak(done.memory_analysis()), "", done.as_text(), constraints, noise())


def needed(excess: str, arguments: int) -> int | None:
    """Bytes that the compiler says it would have needed; where it speaks of temporaries, the arguments come on top."""
    found = re.search(r"Used ([\d.]+[KMGT]) of|temporaries \(([\d.]+[KMGT])\) exceeds", excess)
    size = found and SIZE.match(found[1] or found[2])
    return int(float(size[1]) * UNITS[size[2]]) + (arguments if found[2] else 0) if found and size else None


def _peak(sizes: Any) -> int:
    """Where the compiler does not say, as for GPUs: what goes in, what comes out beside it, and what lies between."""
    sum_of_all = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return int(sizes.peak_memory_in_bytes or sum_of_all - sizes.alias_size_in_bytes)


def _excess(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if "hbm" in line.lower() or "exceed" in line.lower()]
    return " ".join((lines or message.splitlines())[0].split())[:300]


@contextlib.contextmanager
def quiet() -> Iterator:
    """Keeps what the compiler writes to stderr out of the way; gives a function that counts its rematerialisations."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def warnings() -> int:
            file.seek(0)
            return file.read().decode(errors="replace").count(REMATERIALISED)

        try:
            yield warnings
        finally:
            os.dup2(kept, 2)
            os.close(kept)
