"""From a config to everything a run needs, before anything is compiled: data, model, mesh, steps."""

import dataclasses
import hashlib
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from flaxformer_lite import partitioning, registry
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data.pipeline import Dataset, open_dataset
from flaxformer_lite.models import _partition
from flaxformer_lite.training import flops, optimizer, state, step

EXAMPLE_IDS = ("input_ids", "decoder_input_ids")  # what counts as a token of input


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run that is ready to start.

    Attributes:
      cfg: with the vocabulary's size filled in.
      train_data, eval_data: the two sides of the split.
      model: the linen module.
      mesh: over the devices.
      target: the train state's shapes, types and shardings.
      fresh_state: builds the state before the first step.
      train_step, eval_step: compiled at their first call.
      tokens_per_step: input tokens, padding included.
      flops_per_step: of the model, forward and backward.
    """

    cfg: ExperimentConfig
    train_data: Dataset
    eval_data: Dataset
    model: nn.Module
    mesh: Mesh
    target: state.TrainState
    fresh_state: Callable[[], state.TrainState]
    train_step: Callable
    eval_step: Callable
    tokens_per_step: int
    flops_per_step: int

    def train_batches(self, start: int) -> Iterator[Any]:
        """Batches from step `start` on, placed on the devices, without end."""
        yield from self._placed(self.train_data, start)

    def eval_batches(self) -> Iterator[Any]:
        """The first `train.eval_batches` batches of held-out text, the same each time."""
        batches = self._placed(self.eval_data, 0)
        for batch, _ in zip(batches, range(self.cfg.train.eval_batches), strict=False):
            yield batch

    def _placed(self, data: Dataset, start: int) -> Iterator[Any]:
        rows = data.batches(
            batch_size=self.cfg.train.batch_size,
            seed=self.cfg.seed,
            start_step=start,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        for batch in rows:
            yield partitioning.place_batch(batch, self.mesh)


def prepare(cfg: ExperimentConfig) -> Experiment:
    """Opens the data (tokenizing it on the first call), builds the model and checks that all fits together.

    Raises:
      ConfigError: data, model, mesh and batch do not fit; says which field to change.
    """
    keep_compiled(cfg.data.cache)
    mesh = partitioning.build_mesh(cfg.mesh)
    partitioning.check_batch(cfg.train.batch_size, cfg.train.accumulate, mesh)
    train_data, eval_data = open_dataset(cfg, "train"), open_dataset(cfg, "eval")
    cfg = _with_vocabulary(cfg, train_data)
    family = registry.resolve("models", cfg.model.family)
    model, train, tx = family.Model(cfg.model), cfg.train, optimizer.build(cfg.optimizer, cfg.train.steps)
    init_key, dropout_key = jax.random.split(jax.random.key(cfg.seed))
    inputs = train_data.example_inputs(1)

    def features(params, inputs, key):
        rngs = {} if key is None else {"dropout": key}
        return model.apply({"params": params}, **inputs, rngs=rngs, method="features")

    def create():
        zeros = {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in inputs.items()}
        return state.create(lambda: model.init(init_key, **zeros, method="features")["params"], tx)

    shapes = jax.eval_shape(create)
    shardings = partitioning.state_shardings(shapes, _partition.rules(cfg.model), mesh)
    train_step = step.train_step(
        features,
        cfg.objective,
        tx,
        optimizer.schedule(cfg.optimizer, train.steps),
        dropout_key=dropout_key if cfg.model.dropout else None,
        accumulate=train.accumulate,
        chunks=train.loss_chunks,
    )
    eval_step = step.eval_step(features, cfg.objective, chunks=train.loss_chunks)
    batch = _batch_shapes(train_data, train.batch_size)
    return Experiment(
        cfg=cfg,
        train_data=train_data,
        eval_data=eval_data,
        model=model,
        mesh=mesh,
        target=jax.tree.map(lambda s, h: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=h), shapes, shardings),
        fresh_state=jax.jit(create, out_shardings=shardings),
        train_step=partitioning.jit_step(train_step, shardings, mesh),
        eval_step=partitioning.jit_eval(eval_step, shardings, mesh),
        tokens_per_step=sum(batch["inputs"][name].size for name in EXAMPLE_IDS if name in batch["inputs"]),
        flops_per_step=flops.per_step(eval_step, shapes.params, batch),
    )


def keep_compiled(cache: str) -> None:
    """Keeps compiled programs beside the tokenized data, so that a second start does not wait for the compiler."""
    compilation_cache.reset_cache()  # jax decides at its first compilation whether it has a cache
    folder = Path(cache).expanduser() / "compiled" / _instruction_set()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _instruction_set() -> str:
    """A hash of what the host's processor can do: programs compiled on one host crash on another that can do less."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else [platform.processor()]
    features = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return hashlib.sha256(features.encode()).hexdigest()[:8]


def _with_vocabulary(cfg: ExperimentConfig, data: Dataset) -> ExperimentConfig:
    if cfg.model.vocab_size:
        return cfg
    size = -(-data.vocab_size // 64) * 64
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=size))


def _batch_shapes(data: Dataset, batch_size: int) -> Any:
    example = data.example(0, 0, 0)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape), x.dtype), example)
