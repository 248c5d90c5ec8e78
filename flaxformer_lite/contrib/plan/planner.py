"""Makes a plan from a config and a machine."""

import dataclasses
import datetime
from typing import Any

import jax

from flaxformer_lite import sharding
from flaxformer_lite.analysis import hlo
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.contrib.plan import aot, costs, lints, memory
from flaxformer_lite.contrib.plan.memory import Memory
from flaxformer_lite.contrib.plan.topology import Topology
from flaxformer_lite.data import dummy
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs import mesh_checks
from flaxformer_lite.runs.start.referenced_weights import build_program
from flaxformer_lite.training import program as programs
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import param_count


@dataclasses.dataclass(frozen=True)
class Plan:
    """The resources that a step needs on a machine. Bytes are per chip, seconds per step.

    Attributes:
      how: the compiler that made the plan, or the reason why none did.
      memory: the memory of a chip; None if the compiler failed before it reported any.
      excess: the compiler's message if the step does not fit.
      model_flops, executed_flops: FLOPs of all chips together, without and with recomputation.
      seconds: time with all traffic hidden behind the computation, and with none hidden.
      scheduled: time with the traffic hidden that is scheduled beside computation.
      utilisation: share of the peak, by the model's FLOPs, at the longer and at the shorter time.
      largest: the three largest costs, in seconds.
      unknown_loops: loops with an unknown number of iterations, counted once.
      untimed: hand-written kernels whose time is not known and not counted.
    """

    topology: str
    chips: int
    mesh: dict[str, int]
    family: str
    parameters: int
    batch_size: int
    accumulate: int
    tokens: int
    remat: str
    attention: str
    how: str
    made: str
    fits: bool
    available: int
    memory: Memory | None
    excess: str
    model_flops: int
    executed_flops: int
    exchanges: tuple[costs.Exchange, ...]
    seconds: tuple[float, float] | None
    scheduled: float | None
    utilisation: tuple[float, float] | None
    largest: tuple[tuple[str, float], ...]
    unknown_loops: int
    untimed: tuple[str, ...]
    warnings: tuple[str, ...]
    compile_seconds: float | None

    def json(self) -> Json:
        return dataclasses.asdict(self)


def make(cfg: ExperimentConfig, topology: Topology, *, compiler: bool = True) -> Plan:
    """Plans a run with a compiler for the machine if there is one, else its memory by formulas.

    Args:
      cfg: the experiment; no data is opened.
      topology: the machine.
      compiler: False asks for the plan by formulas.

    Raises:
      ConfigError: config, mesh and machine do not fit each other.
    """
    reason = "asked for"
    if compiler:
        reason = aot.missing(topology)
    if reason:
        return analytic_plan(build(cfg, topology, described=True), topology, reason)
    return _compiled(build(cfg, topology, described=False), topology)


def build(cfg: ExperimentConfig, topology: Topology, *, described: bool) -> Program:
    """Builds the program of a run on the machine; `described` uses only the sizes of its mesh."""
    slices = cfg.mesh.slices
    mesh = mesh_checks.describe_mesh(cfg, topology.count * slices)
    if not described:
        mesh = sharding.build_mesh(cfg.mesh, aot.devices(topology, slices))
    cfg = programs.with_vocabulary(cfg, dummy.vocab_size(cfg))
    return build_program(cfg, mesh, dummy.example(cfg))


def analytic_plan(program: Program, topology: Topology, reason: str) -> Plan:
    """Makes a plan of memory alone; `reason` is why no compiler made one of time too."""
    needs = memory.analytic(program)
    how = f"analytic ({reason}); sizes are exact, activations are an estimate, times are unknown"
    return _plan(program, topology, how, needs.total <= topology.chip.memory, needs, None)


def _compiled(program: Program, topology: Topology) -> Plan:
    done = aot.compile_step(program)
    how = f"compiled by {aot.compiler(topology)} with jax {jax.__version__}"
    if done.peak is None:
        total = aot.needed(done.excess, sum(memory.held(program)[:2]))
        needs = None
        if total:
            needs = memory.compiled(program, total)
        return _plan(
            program,
            topology,
            how,
            False,
            needs,
            None,
            excess=done.excess,
            compile_seconds=done.seconds,
        )
    module = hlo.parse(done.text)
    cost = costs.of(module, topology.chip, program.mesh.shape, program.cfg.mesh.slices)
    return _plan(
        program,
        topology,
        how,
        done.peak <= topology.chip.memory,
        memory.compiled(program, done.peak),
        cost,
        warnings=tuple(lints.warnings(program, done, module)),
        compile_seconds=done.seconds,
    )


def _plan(
    program: Program,
    topology: Topology,
    how: str,
    fits: bool,
    needs: Memory | None,
    cost: costs.Costs | None,
    *,
    excess: str = "",
    warnings: tuple[str, ...] = (),
    compile_seconds: float | None = None,
) -> Plan:
    cfg = program.cfg
    chip = topology.chip
    chips = program.mesh.size
    timing: dict[str, Any] = {
        "exchanges": (),
        "seconds": None,
        "scheduled": None,
        "utilisation": None,
        "largest": (),
        "unknown_loops": 0,
        "untimed": (),
    }
    if cost:
        ideal = program.flops_per_step / chips / chip.peak
        shortest, longest = cost.seconds
        timing = {
            "exchanges": cost.exchanges,
            "seconds": cost.seconds,
            "scheduled": cost.scheduled,
            "utilisation": (ideal / longest, ideal / shortest),
            "largest": tuple(cost.largest()),
            "unknown_loops": cost.unknown,
            "untimed": cost.untimed,
        }
    return Plan(
        topology=topology.name,
        chips=chips,
        mesh={name: size for name, size in program.mesh.shape.items() if size > 1} or {"data": 1},
        family=cfg.model.family,
        parameters=param_count(program.target.params),
        batch_size=cfg.train.batch_size,
        accumulate=cfg.train.accumulate,
        tokens=program.tokens_per_step,
        remat=cfg.model.remat,
        attention=cfg.model.attention,
        how=how,
        made=datetime.date.today().isoformat(),
        fits=fits,
        available=int(chip.memory),
        memory=needs,
        excess=excess,
        model_flops=program.flops_per_step,
        executed_flops=programs.executed_flops(program),
        warnings=warnings,
        compile_seconds=compile_seconds,
        **timing,
    )
