"""Reports before the first step what each device gets: its part of a batch, and parameters."""

import math

import jax

from flaxformer_lite import sharding
from flaxformer_lite.training.program import Program

MIN_NAMED_BYTES = 2**20  # bytes from which on a replicated parameter is named


def sharding_report(program: Program) -> list[tuple[str, str]]:
    """Returns the rows of the report; none for a single device."""
    if program.mesh.size == 1:
        return []
    return [
        ("batch", _batch(program)),
        ("replicated", _replicated(program)),
    ]


def _batch(program: Program) -> str:
    mesh = program.mesh.shape
    train = program.cfg.train
    ways = sharding.num_batch_shards(mesh)
    microbatches = ""
    if train.accumulate > 1:
        rows = train.batch_size // (train.accumulate * ways)
        microbatches = f" in {train.accumulate} microbatches of {rows}"
    split = "data x fsdp"
    if mesh["expert"] > 1:
        split = "data x fsdp x expert"
    text = (
        f"{train.batch_size} sequences, {train.batch_size // ways} a device{microbatches} ({split}"
        f" = {ways})"
    )
    if mesh["context"] > 1:
        text += f", each cut in {mesh['context']} along its length"
    return text


def _replicated(program: Program) -> str:
    """Describes the large parameters that no axis of the mesh splits, and why."""
    mesh = program.mesh.shape
    leaves = jax.tree.leaves(program.target.params)
    total = sum(_bytes(leaf) for leaf in leaves)
    replicated = sum(_bytes(leaf) for leaf in leaves if leaf.sharding.is_fully_replicated)
    share = f"{format_bytes(replicated)} of {format_bytes(total)} of parameters"
    if mesh["fsdp"] == mesh["tensor"] == 1 and not program.cfg.mesh.shard_over_data:
        return f"{share}: mesh.fsdp=1 and mesh.tensor=1 split no weights"
    text = f"{share}: no rule of sharding/parameter_rules.py splits them"
    large = sharding.list_replicated(
        program.target.params, program.rules, program.mesh, MIN_NAMED_BYTES
    )
    if large:
        named = [
            f"{leaf.path} {format_bytes(leaf.bytes)} by the rule {leaf.rule}" for leaf in large[:3]
        ]
        text += f"; the largest: {'; '.join(named)}"
    return text


def format_bytes(count: int) -> str:
    """Formats 1234567 as `1.23 MB`."""
    unit = 0
    if count:
        unit = min(3, int(math.log10(count)) // 3)
    return f"{count / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB')[unit]}"


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
