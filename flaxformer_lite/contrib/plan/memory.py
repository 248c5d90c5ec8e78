"""Memory of a chip: exact for sharded state, estimated for a backward pass's residuals."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ExperimentConfig, MeshConfig, TrainConfig
from flaxformer_lite.nn.functions.losses import pieces_of
from flaxformer_lite.nn.functions.splade import MAX_LOGITS
from flaxformer_lite.sharding.activations import num_batch_shards
from flaxformer_lite.training import program as programs
from flaxformer_lite.training.bound_models import Models
from flaxformer_lite.training.program import Program

FLOAT32_BYTES = 4
VOCABULARY_HEADS = ("lm", "masked_lm", "pretraining")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one chip: `total` is the peak, `activations` the rest after the other three."""

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    total: int


def held(program: Program) -> tuple[int, int, int]:
    """Returns one chip's bytes of parameters, optimizer state and gradients.

    Gradients are float32, and sharded like parameters; codes of few bits have none.
    """
    params = program.target.params
    opt_state = program.target.opt_state
    floats = [x for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
    return _bytes(params), _bytes(opt_state), _bytes(floats, FLOAT32_BYTES)


def analytic(program: Program) -> Memory:
    """Estimates memory without a compiler: the state, the residuals and the largest temporaries."""
    state = held(program)
    activations = _saved(program) + _passing(program)
    return Memory(*state, activations, sum(state) + activations)


def compiled(program: Program, peak: int) -> Memory:
    """Divides the compiler's peak into parameters, optimizer, gradients and the rest."""
    state = held(program)
    return Memory(*state, max(0, peak - sum(state)), peak)


def microbatch_rows(program: Program) -> int:
    """Returns the sequences of a microbatch on one chip."""
    mesh = program.mesh.shape
    train = program.cfg.train
    return max(1, train.batch_size // (train.accumulate * num_batch_shards(mesh)))


def _saved(program: Program) -> int:
    """Estimates the bytes that a forward pass keeps for the backward pass on one chip.

    The loss is traced with its gradient for one sequence and for two; the difference is what each
    sequence keeps. Tensor parallelism splits all arrays but those of the model's width.
    """
    # Blockwise, as no implementation used at scale keeps all pairs of positions.
    models = program.models.rebuild(attention="blockwise")
    train = TrainConfig(loss_chunks=program.cfg.train.loss_chunks)
    cfg = dataclasses.replace(program.cfg, mesh=MeshConfig(), train=train)

    def residuals(count: int) -> tuple[int, int]:
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), program.batch
        )
        params = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.target.params
        )
        leaves, tree = jax.tree.flatten((params, batch))
        return _residuals(cfg, models, tuple(leaves), tree)

    wide_1, split_1 = residuals(1)
    wide_2, split_2 = residuals(2)
    mesh = program.mesh.shape
    per_sequence = wide_2 - wide_1 + (split_2 - split_1) / mesh["tensor"]
    return int(microbatch_rows(program) * per_sequence / mesh["context"])


@functools.lru_cache(maxsize=64)
def _residuals(
    cfg: ExperimentConfig, models: Models, leaves: tuple, tree: jax.tree_util.PyTreeDef
) -> tuple[int, int]:
    """Returns the bytes that a loss's pullback holds: arrays of the model's width, and others."""
    params, batch = tree.unflatten(leaves)
    loss = programs.loss(cfg, models)
    pull = jax.eval_shape(
        lambda params, batch: jax.vjp(lambda p: loss(p, batch), params)[1], params, batch
    )
    total = [0, 0]
    for leaf in jax.tree.leaves(pull):
        total[cfg.model.d_model not in leaf.shape[-1:]] += leaf.size * leaf.dtype.itemsize
    return total[0], total[1]


def _passing(program: Program) -> int:
    """Estimates the largest temporaries.

    They are a layer's recomputed arrays, the weights of two layers, the logits of a chunk.
    """
    model = program.cfg.model
    mesh = program.mesh.shape
    itemsize = jax.numpy.dtype(model.dtype).itemsize
    layers = max(1, model.encoder_layers + model.decoder_layers)
    keeping = dataclasses.replace(program.cfg, model=dataclasses.replace(model, remat="none"))
    recomputed = (_saved(dataclasses.replace(program, cfg=keeping)) - _saved(program)) / layers
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.target.params))
    weights = parameters / layers / mesh["tensor"]
    logits = transient_logits(program) / mesh["tensor"] / mesh["context"]
    logit_bytes = logits * (FLOAT32_BYTES + itemsize)
    return int(recomputed + 2 * weights * itemsize + logit_bytes)


def transient_logits(program: Program) -> int:
    """Estimates how many logits over the vocabulary one chip holds at once.

    They are of the labels in the targets, or in the inputs where an objective compares whole
    answers, and otherwise of all tokens, of which sparse embeddings pool some at a time.
    """
    model = program.cfg.model
    if model.head not in VOCABULARY_HEADS:
        return 0
    train = program.cfg.train
    rows = microbatch_rows(program)
    inputs = program.batch["inputs"]
    targets = program.batch["targets"]
    decoder = model.of_decoder
    if "labels" in targets:
        count, *shape = targets["labels"].shape
        labels = math.prod(shape)
        chunks = pieces_of(labels * count // train.accumulate, decoder.d_model, train.loss_chunks)
        return rows * -(-labels // chunks) * decoder.vocab_size
    if "labels" in inputs:
        _, *texts, length = inputs["labels"].shape
        return rows * math.prod(texts) * -(-length // train.loss_chunks) * decoder.vocab_size
    _, *texts, length = inputs["input_ids"].shape
    per_token = rows * math.prod(texts) * decoder.vocab_size
    return min(max(MAX_LOGITS, per_token), per_token * length)


def _bytes(tree: object, itemsize: int | None = None) -> int:
    """Counts a chip's bytes of a tree, with the itemsizes of its dtypes or a given one."""
    leaves = jax.tree.leaves(tree)
    total = 0
    for x in leaves:
        elements = math.prod(x.sharding.shard_shape(x.shape))
        total += elements * (itemsize or x.dtype.itemsize)
    return total
