"""A plan without a compiler.

Sizes are exact; activations and traffic follow from the shapes, time from data sheets.
"""

import collections
import dataclasses
import math

import jax
from flax.traverse_util import flatten_dict

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan import costs, memory
from flaxformer_lite.contrib.plan.topology import Chip
from flaxformer_lite.nn.attentions.context_parallel import ring
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.pretrained.tensor_names import EXPERTS
from flaxformer_lite.training.program import Program, executed_flops

# Share of the peak that large models reach in published runs, give or take a third.
EFFICIENCY = 0.55
# The same for recomputation: above 1, as stored arrays must be written and read (docs/plan.md).
RECOMPUTED = 1.5
# Columns of the model's width per TPU, below which its compiler all-reduces some gradients
# (docs/plans).
COLUMNS = 256


def of(program: Program, chip: Chip) -> costs.Costs:
    """Estimates a step's computation and traffic, if the partitioner follows the mesh."""
    model = dataclasses.replace(program.cfg.model, remat="none")
    keeping = dataclasses.replace(program, cfg=dataclasses.replace(program.cfg, model=model))
    needed = executed_flops(keeping)
    recomputed = executed_flops(program) - needed
    compute = (needed / EFFICIENCY + recomputed / RECOMPUTED) / program.mesh.size / chip.peak
    collectives = [each for each in _collectives(program, chip) if each.bytes * each.times]
    return costs.Costs(
        {f"computation at {EFFICIENCY:.0%} of the peak": compute},
        costs.exchanges(collectives, chip, program.mesh.shape, program.cfg.mesh.slices),
        unknown=0,
    )


def _collectives(program: Program, chip: Chip) -> list[hlo.Collective]:
    cfg = program.cfg
    mesh = program.mesh.shape
    model = cfg.model
    turns = cfg.train.accumulate
    itemsize = jax.numpy.dtype(model.dtype).itemsize
    flat = flatten_dict(program.target.params, sep="/")
    experts = sum(leaf.size for path, leaf in flat.items() if EXPERTS in path)
    dense = sum(leaf.size for leaf in flat.values()) - experts
    weights = (dense + experts // mesh["expert"]) // mesh["tensor"]
    layers = model.encoder_layers + model.decoder_layers
    passes = 3 if model.remat != "none" else 2
    tokens = 0
    for name, x in program.batch["inputs"].items():
        if name.endswith("input_ids"):
            tokens += memory.microbatch_rows(program) * math.prod(x.shape[1:])
    stream = tokens * model.d_model * itemsize
    kinds: collections.Counter[tuple[int, int, int]] = collections.Counter()
    for seen, kind in model.layers:
        queries = seen.num_heads * seen.head_width
        keys = seen.kv_heads * seen.head_width
        kinds[queries, keys, kind.window or 0] += 1
    gradients = "all-reduce"
    if not chip.clock or (mesh["data"] > 1 and model.d_model >= COLUMNS * mesh["fsdp"]):
        gradients = "reduce-scatter"
    replicas = weights * memory.FLOAT32 // mesh["fsdp"]
    over_context = []
    for sizes, count in kinds.items():
        over_context += _over_context(program, sizes, tokens, count * turns)
    shared = dense // mesh["tensor"] * memory.FLOAT32 // mesh["fsdp"]
    to_experts = []
    for seen, kind in model.layers:
        moe = kind.feed_forward or seen.feed_forward
        if isinstance(moe, MoeConfig):
            to_experts += _to_experts(program, moe, stream, passes * turns)
    over_data = [_collective("all-reduce", "data", replicas, turns, program)]
    if cfg.mesh.shard_over_data:
        part = weights * itemsize // mesh["fsdp"]
        over_data = [
            _collective("all-gather", "data", part, 2 * turns, program),
            _collective("reduce-scatter", "data", part, turns, program),
        ]
    return [
        *to_experts,
        *over_data,
        _collective("all-reduce", "expert", shared, turns, program),
        _collective("all-gather", "fsdp", weights * itemsize, 2 * turns, program),
        _collective(gradients, "fsdp", weights * itemsize, turns, program),
        _collective("all-reduce", "tensor", stream, 2 * passes * layers * turns, program),
        *over_context,
    ]


def _to_experts(program: Program, moe: MoeConfig, stream: int, times: int) -> list[hlo.Collective]:
    """Returns what the experts of one layer send along `expert`.

    With `all_to_all` a token goes once to each device that has experts of it. Their number is that
    of an even load; groups of experts, which are not counted, make it smaller.

    Args:
      program: the program.
      moe: the record of the layer.
      stream: bytes of the tokens of a device.
      times: passes, times microbatches.
    """
    ways = program.mesh.shape["expert"]
    if program.cfg.mesh.expert_dispatch == "gather":
        size = stream * ways
        return [
            _collective("all-gather", "expert", size, times, program),
            _collective("reduce-scatter", "expert", size, times, program),
        ]
    elsewhere = moe.num_experts - moe.num_experts // ways
    choices = math.comb(moe.num_experts, moe.experts_per_token)
    missed = math.comb(elsewhere, moe.experts_per_token) / choices
    sent = int(stream * ways * (1 - missed))
    return [_collective("all-to-all", "expert", sent, 2 * times, program)]


def _over_context(
    program: Program, sizes: tuple[int, int, int], tokens: int, layers: int
) -> list[hlo.Collective]:
    """Returns what attention sends along `context` in layers of one kind.

    Args:
      program: the program.
      sizes: numbers per token of all query heads and of all key heads, and the window.
      tokens: those of the rows that the devices of a ring share.
      layers: the number of layers, times microbatches.
    """
    cfg = program.cfg
    model = cfg.model
    ways = program.mesh.shape["context"]
    itemsize = jax.numpy.dtype(model.dtype).itemsize
    query_width, key_width, window = sizes
    per_token = tokens * itemsize
    forwards = layers if model.remat == "none" else 2 * layers
    if cfg.mesh.context_attention == "all_to_all":
        times = 2 * (forwards + layers)  # queries and outputs, keys and values
        queries = per_token * query_width // ways
        keys = per_token * key_width // ways
        return [
            _collective("all-to-all", "context", queries, times, program),
            _collective("all-to-all", "context", keys, times, program),
        ]
    keys = 2 * per_token * key_width
    if cfg.mesh.context_attention == "gather":
        return [_collective("all-gather", "context", keys, forwards + layers, program)]
    mask = None
    if window:
        ahead = window - 1 if model.skeleton == "encoder" else 0
        mask = masks.window(window - 1, ahead)
    parts = ring.route_of(mask, cfg.data.length, cfg.data.length, ways).parts
    # A kept output is not computed again.
    forwards = 2 * layers if model.remat == "full" else layers
    gradients = 2 * tokens * key_width * memory.FLOAT32
    kind = "collective-permute"
    return [
        _collective(kind, "context", keys // ways, (forwards + layers) * (parts - 1), program),
        _collective(kind, "context", gradients // ways, layers * (parts + 1), program),
    ]


def _collective(kind: str, axis: str, size: int, times: int, program: Program) -> hlo.Collective:
    """Returns a collective along an axis of the mesh, without cost if the axis has size one."""
    mesh = program.mesh.shape
    ways = mesh.get(axis, 1)
    names = list(mesh)
    inner = 1
    if axis in names:
        inner = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
    group = tuple(inner * i for i in range(ways))
    if ways == 1:
        size = 0
    return hlo.Collective(kind, int(size), times, (group,), "", ())
