"""A search over meshes, batches and remat policies: all of them analytically, the most promising by
the compiler."""

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
    """Returns plans that fit, the most tokens per second first; compiled ones come before analytic
    ones.

    Args:
      cfg: the config; the model's sizes, lengths, dtypes and slices are kept.
      topology: the machine.
      compiles: the most compilations; none if there is no compiler.
      compiler: False uses data sheets only.
      say: called with messages about the progress.
    """

    # On a tie, prefer the smaller batch and the narrower fsdp, which gathers weights across fewer
    # chips.
    def rank(found: Candidate) -> tuple:
        return (
            -round(speed(found.plan), -1),
            found.overrides["train.batch_size"],
            found.overrides["mesh.fsdp"],
        )

    guesses = sorted(_guesses(cfg, topology, say), key=rank)
    guesses = list({_kind(found): found for found in reversed(guesses)}.values())[::-1]
    if not compiler or aot.missing(topology):
        return guesses
    guesses.sort(key=_reduces_whole)
    done = []
    for number, guess in enumerate(guesses[:compiles], start=1):
        say(f"compiling {number} of {min(compiles, len(guesses))}: {shown(guess.overrides)}")
        done.append(
            Candidate(guess.overrides, planner.make(changed(cfg, guess.overrides), topology))
        )
    return sorted(
        (found for found in done if found.plan.fits), key=lambda found: -speed(found.plan)
    )


def _kind(found: Candidate) -> tuple:
    """Returns a key shared by plans that differ only in the batch, of which the best is enough."""
    return tuple(value for name, value in found.overrides.items() if not name.startswith("train."))


def _reduces_whole(found: Candidate) -> bool:
    """Returns whether data sheets expect gradients all-reduced over fsdp; compiled, such meshes
    were seldom the best."""
    return any(one.kind == "all-reduce" and one.axes == ("fsdp",) for one in found.plan.exchanges)


def speed(plan: Plan) -> float:
    """Returns tokens per second, at the middle of the estimate; 0 if there is none."""
    return 2 * plan.tokens / sum(plan.seconds) if plan.seconds else 0.0


def shown(overrides: dict[str, object]) -> str:
    """Formats overrides as on the command line."""
    return " ".join(f"--config.{name}={value}" for name, value in overrides.items())


def _guesses(
    cfg: ExperimentConfig, topology: Topology, say: Callable[[str], None]
) -> Iterator[Candidate]:
    """Yields, for each mesh, batch and policy, the plan with the fewest microbatches that fits."""
    wanted = list(itertools.product(_meshes(topology.count * cfg.mesh.slices), BATCH))
    say(
        f"{len(wanted) * len(choices.REMATS)} combinations of mesh, remat policy and batch, by data"
        " sheets"
    )
    for mesh, times in wanted:
        overrides = {f"mesh.{axis}": size for axis, size in mesh.items()} | {
            "train.batch_size": times * cfg.train.batch_size
        }
        try:
            program = planner.build(
                changed(cfg, {**overrides, "train.accumulate": 1}), topology, described=True
            )
        except ConfigError:  # this mesh does not divide the batch or the model
            continue
        rows = memory.rows(program)
        for remat in choices.REMATS:
            for accumulate in (number for number in ACCUMULATE if rows % number == 0):
                own = {"model.remat": remat, "train.accumulate": accumulate}
                part = dataclasses.replace(program, cfg=changed(program.cfg, own))
                if memory.analytic(part).total <= CLEARANCE * topology.chip.memory:
                    yield Candidate(
                        overrides | own, planner.analytic_plan(part, topology, "one of many")
                    )
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
        part, field = name.split(".")
        cfg = dataclasses.replace(
            cfg, **{part: dataclasses.replace(getattr(cfg, part), **{field: value})}
        )
    return cfg
