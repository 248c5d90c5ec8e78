"""Setup of everything that a run needs before anything is compiled: data, model, mesh, steps."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from flaxformer_lite import sharding
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data.padding import Buckets, Packer
from flaxformer_lite.data.pipeline import Batches, Dataset, open_dataset
from flaxformer_lite.inference.writer import writer
from flaxformer_lite.objectives.base import Writer
from flaxformer_lite.runs import packing
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.auxiliary_weights import (
    build_program,
    check_tokenizer,
    hash_weights,
)
from flaxformer_lite.training import evaluate, program
from flaxformer_lite.training.program import Program
from flaxformer_lite.types import Batch, Params


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run that is ready to start: the program, and the training and held-out data."""

    program: Program
    train_data: Dataset
    eval_data: Dataset
    # by step
    packers: Mapping[str, Packer | Buckets | None] = dataclasses.field(default_factory=dict)
    weights: str = ""  # digest of the weights that are read from a directory, and not saved

    @property
    def cfg(self) -> ExperimentConfig:
        return self.program.cfg

    @property
    def fingerprint(self) -> str:
        """A hash of all data read besides the config: text, tokenizer, weights not saved."""
        if not self.weights:
            return self.train_data.fingerprint
        return f"{self.train_data.fingerprint} with {self.weights}"

    def train_batches(self, start: int) -> Batches:
        """Returns endless batches from step `start` on.

        They are placed on the devices in advance, until `close()`.
        """
        return self._placed(self.train_data, start, ahead=2, packer=self.packers.get("train_step"))

    def eval_batches(self) -> Iterator[Batch]:
        """Returns the first `train.eval_batches` held-out batches, or all; always the same."""
        return itertools.islice(
            self._placed(self.eval_data, 0, packer=self.packers.get("eval_step")),
            self.cfg.train.eval_batches or None,
        )

    def predict(self, split: str, params: Params, name: str) -> np.ndarray:
        """Returns a prediction of these parameters for all examples of a split, in their order.

        Its shape is [examples, ...].
        """
        data = dataclasses.replace(self.eval_data, splits={"eval": self.eval_data.splits[split]})
        packer = self.packers.get("eval_step")
        buckets = None
        if isinstance(packer, Buckets):
            buckets = dataclasses.replace(packer, sizes=data.records.sizes)
        batches = self._placed(data, 0, packer=buckets)
        _, shuffled = evaluate.run(self.program.eval_step, params, batches, data)
        return shuffled[name][np.argsort(data.order)]

    def with_reference(self, reference: dict[str, np.ndarray]) -> "Experiment":
        """Adds a prediction of the starting weights to the examples of each split."""
        splits = {}
        for name, records in self.train_data.splits.items():
            splits[name] = dataclasses.replace(records, reference=reference[name])
        return dataclasses.replace(
            self,
            train_data=dataclasses.replace(self.train_data, splits=splits),
            eval_data=dataclasses.replace(self.eval_data, splits=splits),
        )

    def writer(self, params: Params) -> Writer:
        """Returns a function that continues prompts with these parameters."""
        return writer(
            self.program.model, self.program.saved_params(params), self.eval_data.tokenizer
        )

    def _placed(
        self, data: Dataset, start: int, ahead: int = 0, packer: Packer | Buckets | None = None
    ) -> Batches:
        size = self.cfg.train.batch_size
        mesh = self.program.mesh
        return data.batches(
            batch_size=size,
            seed=self.cfg.seed,
            start_step=start,
            rows=sharding.batch_rows(mesh, size),
            place=lambda batch: sharding.place_batch(batch, mesh, size),
            ahead=ahead,
            packer=packer,
        )


def prepare(cfg: ExperimentConfig) -> Experiment:
    """Opens the data (tokenizing it if necessary), builds the program, checks that they fit.

    Raises:
      ConfigError: data, model, mesh and batch do not fit; names the field to change.
    """
    compile_anew_on_cpu_groups()
    program.update_rule(cfg)  # refuses what does not fit before texts are tokenized
    mesh = sharding.build_mesh(cfg.mesh)
    sharding.check_batch(cfg.train.batch_size, cfg.train.accumulate, mesh)
    train_data = open_dataset(cfg, "train", labels=warm_start.known_labels(cfg))
    eval_data = dataclasses.replace(train_data, split="eval")
    objective = train_data.objective
    cfg = program.with_vocabulary(cfg, train_data.vocab_size)
    cfg = program.with_steps(cfg, train_data.num_examples, train_data.held)
    model = objective.fit_model(cfg.model, train_data.tokenizer)
    cfg = dataclasses.replace(cfg, objective=objective, model=model)
    built = build_program(cfg, mesh, train_data.example(0, 0, 0))
    check_tokenizer(built, train_data.tokenizer)
    packers, notices = packing.plan_packing(cfg, built.model, mesh.shape, train_data)
    notices = [*notices, *packing.beyond_window(cfg.model, cfg.data.length)]
    described = (*train_data.described, *notices)
    packed: dict[str, tuple[Batch, ...]] = {}
    for name, packer in packers.items():
        packed[name] = (built.batch,)
        if packer:
            packed[name] = packing.packed_shapes(built.batch, packer)
    batch = packed.get("train_step", (built.batch,))[0]
    built = dataclasses.replace(
        built, batch=batch, tokens_per_step=program.tokens(batch), packed=packed
    )
    return Experiment(
        built,
        train_data=dataclasses.replace(train_data, described=described),
        eval_data=eval_data,
        packers=packers,
        weights=hash_weights(built),
    )


def compile_anew_on_cpu_groups() -> None:
    """Disables JAX's compilation cache if several processes train together on CPU.

    A program that XLA:CPU loads from the cache has lost part of the order of its collectives: each
    loop orders only those inside it, so that they may run before or after those outside
    (xla/backends/cpu/runtime/thunk_proto_serdes.cc, `WhileThunkFromProto`). Between processes Gloo
    pairs messages by their order alone: with microbatches, the wrong arrays meet. Inside one
    process collectives are paired by their ids, and on TPUs and GPUs their order is compiled.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # jax decides at its first compilation whether to cache
