"""The share of each device and process, reported before the first step: batch, memory, replicated
parameters."""

import math

import jax

from flaxformer_lite import sharding
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import memory
from flaxformer_lite.training.program import Program

LARGE = 2**20  # bytes; larger parameters are named if every device holds them whole


def sharding_report(program: Program) -> list[tuple[str, str]]:
    """Returns the rows of the report; none if there is a single device."""
    parts = {"batch": _batch, "reads": _reads, "a device": _device, "replicated": _replicated}
    return (
        []
        if program.mesh.size == 1
        else [(name, describe(program)) for name, describe in parts.items()]
    )


def _batch(program: Program) -> str:
    mesh = program.mesh.shape
    train = program.cfg.train
    ways = mesh["data"] * mesh["fsdp"]
    each = memory.rows(program)
    turns = f" in {train.accumulate} microbatches of {each}" if train.accumulate > 1 else ""
    text = (
        f"{train.batch_size} sequences, {train.batch_size // ways} a device{turns} (data x fsdp ="
        f" {ways})"
    )
    return text + (
        f", each cut in {mesh['context']} along its length" if mesh["context"] > 1 else ""
    )


def _reads(program: Program) -> str:
    """Describes the rows of each batch that this process reads."""
    size = program.cfg.train.batch_size
    cache = program.cfg.data.cache
    count = jax.process_count()
    rows = sharding.batch_rows(program.mesh, size)
    if len(rows) == size:
        return (
            f"all rows of each batch{f' in each of {count} processes' if count > 1 else ''}, from"
            f" {cache}"
        )
    shown = (
        f"{rows[0]} to {rows[-1]}"
        if rows[-1] - rows[0] + 1 == len(rows)
        else f"{len(rows)} rows from {rows[0]}"
    )
    return (
        f"rows {shown} of {size} in process {jax.process_index()} of {count}, others theirs, each"
        f" from its {cache}"
    )


def _device(program: Program) -> str:
    of = memory.analytic(program)
    return (
        f"parameters {size(of.parameters)}, optimizer {size(of.optimizer)}, gradients"
        f" {size(of.gradients)}, activations about {size(of.activations)} (what the backward pass"
        " keeps, by tracing; `plan` asks the compiler)"
    )


def _replicated(program: Program) -> str:
    """Describes the large parameters that no axis of the mesh divides, and why."""
    mesh = program.mesh.shape
    leaves = jax.tree_util.tree_leaves_with_path(program.target.params)
    total = sum(_bytes(leaf) for _, leaf in leaves)
    whole = {
        path_of(keys): _bytes(leaf) for keys, leaf in leaves if leaf.sharding.is_fully_replicated
    }
    kept = f"{size(sum(whole.values()))} of {size(total)} of parameters"
    if mesh["fsdp"] == mesh["tensor"] == 1:
        return f"{kept}: mesh.fsdp=1 and mesh.tensor=1 split no weights"
    large = sharding.replicated(program.target.params, program.rules, program.mesh, LARGE)
    named = "; ".join(
        f"{leaf.path} {size(leaf.bytes)} by the rule {leaf.rule}" for leaf in large[:3]
    )
    return f"{kept}: no rule of sharding/parameter_rules.py splits them" + (
        f"; the largest: {named}" if named else ""
    )


def size(count: int) -> str:
    """Formats 1234567 as `1.23 MB`."""
    unit = min(3, int(math.log10(count)) // 3) if count else 0
    return f"{count / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB')[unit]}"


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
