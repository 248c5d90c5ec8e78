"""Warnings about a compiled step that would run, but inefficiently."""

import math
import re
from collections.abc import Iterator

import jax

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan.aot import Compiled
from flaxformer_lite.contrib.plan.memory import microbatch_rows
from flaxformer_lite.training.program import Program

# inside attention, except the projections
SCORES = re.compile(r"/attention/(?!query|key|value|out|attention\.)")
MIN_WARNED_BYTES = 2**20  # bytes; smaller arrays are not worth a warning
ALIASES = ("tuple", "get-tuple-element", "while", "parameter", "bitcast")  # have no buffer


def warnings(program: Program, compiled: Compiled, module: hlo.Module) -> list[str]:
    """Returns one sentence per warning, with a remedy if there is one."""
    lines = [*_reduced(program, module), *_quadratic(program, module), *_logits(program, module)]
    if compiled.rematerialised:
        lines.append(
            f"involuntary rematerialization: {compiled.rematerialised} arrays are replicated on"
            " every chip to change how they are split; look at the partition rules of embeddings"
            " and heads."
        )
    if program.mesh.size > 1 and not compiled.constraints:
        lines.append(
            "no sharding constraints on activations: the model was built without a MeshSharding."
        )
    return lines


def _reduced(program: Program, module: hlo.Module) -> Iterator[str]:
    """Finds gradients that are all-reduced over fsdp, although each chip needs only its part."""
    mesh = program.mesh.shape
    if mesh["fsdp"] == 1:
        return
    size = 0
    for collective in hlo.collectives(module):
        axes = hlo.mesh_axes(collective.groups, mesh)
        if (
            collective.kind == "all-reduce"
            and "fsdp" in axes
            and collective.bytes > MIN_WARNED_BYTES
        ):
            size += collective.bytes * collective.times
    params = sum(leaf.size for leaf in jax.tree.leaves(program.target.params)) * 4 / mesh["tensor"]
    # The gradient of a table, summed over tokens, is always all-reduced: a few percent, not worth a
    # warning.
    if size > program.cfg.train.accumulate * params / 10:
        yield (
            f"gradients are all-reduced over fsdp where a reduce-scatter would do: {size / 1e9:.1f}"
            " GB a step; try other mesh.data and mesh.fsdp, both larger than 1;"
            " mesh.shard_over_data=True makes room for it."
        )


def _quadratic(program: Program, module: hlo.Module) -> Iterator[str]:
    """Finds buffers with a number for every pair of positions."""
    lengths = {x.shape[1] for x in jax.tree.leaves(program.batch["inputs"]) if len(x.shape) > 1}
    lengths = {length for length in lengths if length >= 256}
    arrays = []
    for op in _buffers(module):
        arrays += [array for array in op.arrays if _pairs(op, array, lengths, program)]
    if arrays:
        yield (
            f"arrays of all pairs of positions, the largest {_shown(arrays)}: set"
            " model.attention=auto or blockwise."
        )


def _pairs(op: hlo.Op, array: hlo.Array, lengths: set[int], program: Program) -> bool:
    model = program.cfg.model
    widths = {model.d_model, model.mlp_dim, model.num_heads * model.head_width}
    hits = [n for n in array.shape if n in lengths]
    if len(hits) < 2 or array.bytes < MIN_WARNED_BYTES:
        return False
    # A width equal to a length looks the same; then only arrays of attention count.
    is_ambiguous = bool(widths & set(hits))
    return not is_ambiguous or bool(SCORES.search(op.source))


def _logits(program: Program, module: hlo.Module) -> Iterator[str]:
    """Finds buffers with the logits of all tokens of a microbatch."""
    model = program.cfg.model.of_decoder
    mesh = program.mesh.shape
    tokens = microbatch_rows(program) * math.prod(program.batch["targets"]["labels"].shape[1:])
    parts = {1, mesh["tensor"], mesh["tensor"] * mesh["fsdp"]}
    lengths = {tokens, *(x.shape[1] for x in jax.tree.leaves(program.batch) if len(x.shape) > 1)}
    sizes = {model.vocab_size // part for part in parts if model.vocab_size % part == 0}
    logits = []
    for op in _buffers(module):
        for array in op.arrays:
            split = sizes & set(array.shape)
            others = math.prod(array.shape) // max(split, default=1)
            # A width equal to a length looks the same, but words are the last axis of logits.
            is_table = model.d_model in array.shape and (
                model.d_model not in lengths or array.shape[-1] == model.d_model
            )
            if split and others >= tokens and not is_table:
                logits.append(array)
    if logits:
        largest = _shown(logits)
        yield f"logits of all tokens at once, the largest {largest}: raise train.loss_chunks."


def _buffers(module: hlo.Module) -> Iterator[hlo.Op]:
    for visit in hlo.visits(module):
        if not visit.inside and visit.op.kind not in ALIASES:
            yield visit.op


def _shown(arrays: list[hlo.Array]) -> str:
    array = max(arrays, key=lambda array: array.bytes)
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
