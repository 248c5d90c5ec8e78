"""Bytes of a chip: what its shardings say exactly, and an estimate of what a backward pass keeps."""

import dataclasses
import math
from typing import Any

import jax

from flaxformer_lite import registry
from flaxformer_lite.config import ModelConfig
from flaxformer_lite.training import program as programs
from flaxformer_lite.training.program import Program

FLOAT32 = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one chip; `total` is the peak, `activations` holds all that is neither of the other three."""

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    total: int


def held(program: Program) -> tuple[int, int, int]:
    """Parameters, optimizer state and gradients (float32, split as the parameters) of one chip, by their shardings."""
    params = program.target.params
    gradients = sum(FLOAT32 * math.prod(_local(leaf)) for leaf in jax.tree.leaves(params))
    return _bytes(params), _bytes(program.target.opt_state), gradients


def analytic(program: Program) -> Memory:
    """Without a compiler: what is held, what the backward pass saves, and the largest things that come and go."""
    parameters, optimizer, gradients = held(program)
    activations = saved(program) + _passing(program)
    return Memory(parameters, optimizer, gradients, activations, parameters + optimizer + gradients + activations)


def compiled(program: Program, peak: int) -> Memory:
    """The compiler's peak; activations are what it leaves beside parameters, optimizer and gradients."""
    parameters, optimizer, gradients = held(program)
    return Memory(parameters, optimizer, gradients, max(0, peak - parameters - optimizer - gradients), peak)


def rows(program: Program) -> int:
    """Sequences of a microbatch on one chip."""
    mesh, train = program.mesh.shape, program.cfg.train
    return max(1, train.batch_size // (train.accumulate * mesh["data"] * mesh["fsdp"]))


def saved(program: Program) -> int:
    """Bytes that a forward pass keeps for the backward one, of one chip.

    The loss is differentiated for one sequence and for two, without running either; what grows is kept by sequence.
    Where heads and feed-forward width are split, only what has the model's width is whole.
    """
    one, two = _residuals(program, 1), _residuals(program, 2)
    split, width = program.mesh.shape["tensor"], program.cfg.model.d_model
    whole = two[True] - one[True]
    return int(rows(program) * (whole + (two[False] - one[False]) / split) / _context(program)) if width else 0


def _residuals(program: Program, count: int) -> dict[bool, int]:
    """Bytes that the pullback of `count` sequences holds: {has the model's width: bytes}."""
    # In blocks, as every implementation that a plan is for: none keeps all pairs of positions.
    cfg = dataclasses.replace(program.cfg, model=dataclasses.replace(program.cfg.model, attention="blockwise"))
    model = registry.resolve("models", cfg.model.family).Model(cfg.model)
    loss = programs.loss(dataclasses.replace(program, cfg=cfg, model=model))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), program.batch)
    pull = jax.eval_shape(lambda params, batch: jax.vjp(lambda p: loss(p, batch), params)[1], program.target.params, batch)
    total = {True: 0, False: 0}
    for leaf in jax.tree.leaves(pull):
        total[cfg.model.d_model in leaf.shape[-1:]] += leaf.size * leaf.dtype.itemsize
    return total


def _passing(program: Program) -> int:
    """Two layers' weights while they are gathered, and a chunk of logits with its gradient."""
    model, train, mesh = program.cfg.model, program.cfg.train, program.mesh.shape
    layers = max(1, model.encoder_layers + model.decoder_layers)
    weights = sum(leaf.size for leaf in jax.tree.leaves(program.target.params)) / layers / mesh["tensor"]
    labels = math.prod(program.batch["targets"]["labels"].shape[1:])
    logits = rows(program) * -(-labels // train.loss_chunks) * model.of_decoder.vocab_size / mesh["tensor"]
    return int(2 * weights * _itemsize(model) + logits * (FLOAT32 + _itemsize(model)) / _context(program))


def _context(program: Program) -> int:
    return program.mesh.shape.get("context", 1)


def _itemsize(model: ModelConfig) -> int:
    return jax.numpy.dtype(model.dtype).itemsize


def _local(leaf: Any) -> tuple[int, ...]:
    return leaf.sharding.shard_shape(leaf.shape)


def _bytes(tree: Any) -> int:
    return sum(leaf.dtype.itemsize * math.prod(_local(leaf)) for leaf in jax.tree.leaves(tree))
