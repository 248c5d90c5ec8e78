"""Reports before the first step what each device and process gets: batch, memory, parameters."""

import math

import jax

from flaxformer_lite import sharding
from flaxformer_lite.training import memory
from flaxformer_lite.training.program import Program

LARGE = 2**20  # bytes from which on a replicated parameter is named


def sharding_report(program: Program) -> list[tuple[str, str]]:
    """Returns the rows of the report; none for a single device."""
    if program.mesh.size == 1:
        return []
    return [
        ("batch", _batch(program)),
        ("reads", _reads(program)),
        ("a device", _device(program)),
        ("replicated", _replicated(program)),
    ]


def _batch(program: Program) -> str:
    mesh = program.mesh.shape
    train = program.cfg.train
    ways = sharding.num_batch_shards(mesh)
    rows = memory.microbatch_rows(program)
    microbatches = ""
    if train.accumulate > 1:
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


def _reads(program: Program) -> str:
    """Describes the rows of each batch that this process reads."""
    size = program.cfg.train.batch_size
    cache = program.cfg.data.cache
    count = jax.process_count()
    rows = sharding.batch_rows(program.mesh, size)
    if len(rows) == size:
        if count > 1:
            return f"all rows of each batch in each of {count} processes, from {cache}"
        return f"all rows of each batch, from {cache}"
    span = f"{len(rows)} rows from {rows[0]}"
    if rows[-1] - rows[0] + 1 == len(rows):
        span = f"{rows[0]} to {rows[-1]}"
    return (
        f"rows {span} of {size} in process {jax.process_index()} of {count}, others theirs, each"
        f" from its {cache}"
    )


def _device(program: Program) -> str:
    of = memory.analytic(program)
    return (
        f"parameters {format_bytes(of.parameters)}, optimizer {format_bytes(of.optimizer)},"
        f" gradients {format_bytes(of.gradients)}, activations about {format_bytes(of.activations)}"
        " (what the backward pass keeps, by tracing; `plan` asks the compiler)"
    )


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
    large = sharding.list_replicated(program.target.params, program.rules, program.mesh, LARGE)
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
