"""A search over meshes, batches and remat policies.

All of them are planned analytically, the most promising by the compiler.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from flaxformer_lite.config import ExperimentConfig, choices
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.plan import aot, planner
from flaxformer_lite.plan.planner import Plan
from flaxformer_lite.plan.topology import Topology
from flaxformer_lite.training import memory

TENSOR = (1, 4)
BATCH = (1, 2)  # multiples of the config's batch size
ACCUMULATE = (1, 2, 4, 8, 16)
CLEARANCE = 0.9  # share of the memory that an analytic plan may fill to be worth compiling


class Candidate(NamedTuple):
    """A plan, and the overrides that lead to it."""

    overrides: dict[str, object]
    plan: Plan


def search(
    cfg: ExperimentConfig,
    topology: Topology,
    *,
    compiles: int,
    compiler: bool = True,
    say: Callable[[str], None],
) -> list[Candidate]:
    """Returns plans that fit, the fastest first; with a compiler, only compiled plans.

    Args:
      cfg: the config; the model's sizes, lengths, dtypes and slices are kept.
      topology: the machine.
      compiles: the most compilations; none if there is no compiler.
      compiler: False uses data sheets only.
      say: called with messages about the progress.
    """

    # On a tie, prefer the smaller batch and the narrower fsdp, which gathers weights across fewer
    # chips.
    def rank(candidate: Candidate) -> tuple:
        return (
            -round(speed(candidate.plan), -1),
            candidate.overrides["train.batch_size"],
            candidate.overrides["mesh.fsdp"],
        )

    guesses = sorted(_guesses(cfg, topology, say), key=rank)
    best: dict[tuple, Candidate] = {}
    for guess in guesses:
        best.setdefault(_kind(guess), guess)
    guesses = list(best.values())
    if not compiler or aot.missing(topology):
        return guesses
    guesses.sort(key=_all_reduces)
    compiled = []
    for number, guess in enumerate(guesses[:compiles], start=1):
        say(f"compiling {number} of {min(compiles, len(guesses))}: {shown(guess.overrides)}")
        plan = planner.make(changed(cfg, guess.overrides), topology)
        if plan.fits:
            compiled.append(Candidate(guess.overrides, plan))
    return sorted(compiled, key=lambda candidate: -speed(candidate.plan))


def _kind(candidate: Candidate) -> tuple:
    """Returns a key that is equal for plans that differ only in the batch; the best one is kept."""
    overrides = candidate.overrides.items()
    return tuple(value for name, value in overrides if not name.startswith("train."))


def _all_reduces(candidate: Candidate) -> bool:
    """Returns whether data sheets expect gradients to be all-reduced over fsdp.

    Compiled, such meshes were seldom the best.
    """
    exchanges = candidate.plan.exchanges
    return any(each.kind == "all-reduce" and each.axes == ("fsdp",) for each in exchanges)


def speed(plan: Plan) -> float:
    """Returns tokens per second, at the middle of the estimate; 0 if there is none."""
    if not plan.seconds:
        return 0.0
    return 2 * plan.tokens / sum(plan.seconds)


def shown(overrides: dict[str, object]) -> str:
    """Formats overrides as on the command line."""
    return " ".join(f"--config.{name}={value}" for name, value in overrides.items())


def _guesses(
    cfg: ExperimentConfig, topology: Topology, say: Callable[[str], None]
) -> Iterator[Candidate]:
    """Yields, for each mesh, batch and policy, the plan with the fewest microbatches that fits."""
    meshes = list(itertools.product(_meshes(topology.count * cfg.mesh.slices), BATCH))
    count = len(meshes) * len(choices.REMATS)
    say(f"{count} combinations of mesh, remat policy and batch, by data sheets")
    for mesh, times in meshes:
        overrides: dict[str, object] = {f"mesh.{axis}": size for axis, size in mesh.items()}
        overrides["train.batch_size"] = times * cfg.train.batch_size
        whole_batch = changed(cfg, {**overrides, "train.accumulate": 1})
        try:
            program = planner.build(whole_batch, topology, described=True)
        except ConfigError:  # this mesh does not divide the batch or the model
            continue
        rows = memory.rows(program)
        for remat in choices.REMATS:
            for accumulate in ACCUMULATE:
                if rows % accumulate:
                    continue
                more = {"model.remat": remat, "train.accumulate": accumulate}
                variant = dataclasses.replace(program, cfg=changed(program.cfg, more))
                if memory.analytic(variant).total <= CLEARANCE * topology.chip.memory:
                    plan = planner.analytic_plan(variant, topology, "one of many")
                    yield Candidate(overrides | more, plan)
                    break


def _meshes(count: int) -> Iterator[dict[str, int]]:
    for tensor in TENSOR:
        fsdp = 1
        while fsdp * tensor <= count:
            if count % (fsdp * tensor) == 0:
                yield {"data": count // (fsdp * tensor), "fsdp": fsdp, "tensor": tensor}
            fsdp *= 2


def changed(cfg: ExperimentConfig, overrides: dict[str, object]) -> ExperimentConfig:
    """Returns the config with overrides, given by dotted names."""
    for name, value in overrides.items():
        section_name, field = name.split(".")
        section = dataclasses.replace(getattr(cfg, section_name), **{field: value})
        cfg = dataclasses.replace(cfg, **{section_name: section})
    return cfg
