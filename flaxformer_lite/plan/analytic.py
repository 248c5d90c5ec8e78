"""A plan without a compiler: sizes are exact, activations and traffic follow from the shapes, time
from data sheets."""

import dataclasses
import math

import jax

from flaxformer_lite.analysis import hlo
from flaxformer_lite.plan import costs
from flaxformer_lite.plan.topology import Chip
from flaxformer_lite.training import memory
from flaxformer_lite.training.program import Program, executed_flops

# share of the peak that large models reach in published runs, give or take a third
EFFICIENCY = 0.55
# the same of recomputation: above 1, as arrays that are kept must be written and read
# (docs/plan.md)
RECOMPUTED = 1.5
# of the model's width; if a TPU holds fewer, its compiler reduces some gradients whole (docs/plans)
COLUMNS = 256


def of(program: Program, chip: Chip) -> costs.Costs:
    """Estimates what a step computes and moves, if the partitioner follows the mesh."""
    kept = dataclasses.replace(
        program.cfg, model=dataclasses.replace(program.cfg.model, remat="none")
    )
    needed = executed_flops(dataclasses.replace(program, cfg=kept))
    again = executed_flops(program) - needed
    compute = (needed / EFFICIENCY + again / RECOMPUTED) / program.mesh.size / chip.peak
    found = [one for one in _collectives(program, chip) if one.bytes * one.times]
    return costs.Costs(
        {f"computation at {EFFICIENCY:.0%} of the peak": compute},
        costs.exchanges(found, chip, program.mesh.shape, program.cfg.mesh.slices),
        unknown=0,
    )


def _collectives(program: Program, chip: Chip) -> list[hlo.Collective]:
    cfg = program.cfg
    mesh = program.mesh.shape
    model = cfg.model
    turns = cfg.train.accumulate
    itemsize = jax.numpy.dtype(model.dtype).itemsize
    weights = sum(leaf.size for leaf in jax.tree.leaves(program.target.params)) // mesh["tensor"]
    layers = model.encoder_layers + model.decoder_layers
    passes = 3 if model.remat != "none" else 2
    tokens = memory.rows(program) * sum(
        math.prod(x.shape[1:])
        for name, x in program.batch["inputs"].items()
        if name.endswith("input_ids")
    )
    stream = tokens * model.d_model * itemsize
    kept = 2 * tokens * model.kv_heads * model.head_width * itemsize
    scattered = not chip.clock or (mesh["data"] > 1 and model.d_model >= COLUMNS * mesh["fsdp"])
    return [
        _one("all-gather", "fsdp", weights * itemsize, 2 * turns, program),
        _one(
            "reduce-scatter" if scattered else "all-reduce",
            "fsdp",
            weights * itemsize,
            turns,
            program,
        ),
        _one("all-reduce", "data", weights * memory.FLOAT32 // mesh["fsdp"], turns, program),
        _one("all-reduce", "tensor", stream, 2 * passes * layers * turns, program),
        _one("all-gather", "context", kept, passes * layers * turns, program),
    ]


def _one(kind: str, axis: str, size: int, times: int, program: Program) -> hlo.Collective:
    """Returns a collective along an axis of the mesh, without cost if the axis has size one."""
    mesh = program.mesh.shape
    ways = mesh.get(axis, 1)
    names = list(mesh)
    inner = math.prod(mesh[name] for name in names[names.index(axis) + 1 :]) if axis in names else 1
    group = tuple(inner * i for i in range(ways))
    return hlo.Collective(kind, int(size) if ways > 1 else 0, times, (group,), "", ())
