"""A run that is ready to start: the program of its steps, its data, and its first state."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite import sharding
from flaxformer_lite.checkpoints.digest import describe_leaves
from flaxformer_lite.checkpoints.frozen_base import Base
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data.padding import Buckets, Packer
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.writer import make_writer
from flaxformer_lite.objectives.base import Dataset, Objective, Writer
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.training import evaluate
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Batch, Params


class BatchIterator(Iterator[Batch], Protocol):
    """Batches that a thread may prepare in advance."""

    def close(self) -> None: ...


class RunData(Dataset, Protocol):
    """The examples of a split as batches (data/dataset.py)."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def objective(self) -> Objective: ...

    @property
    def sources(self) -> Mapping[str, Any]: ...

    @property
    def task(self) -> Any: ...

    @property
    def batches(self) -> Callable[..., BatchIterator]: ...

    def finder(self, seed: int) -> Callable[[int], tuple[Any, int]]: ...

    def of_split(self, split: str) -> "RunData": ...

    def with_reference(self, reference: Mapping[str, np.ndarray]) -> "RunData": ...

    def example(self, row: int, seed: int, position: int) -> Example: ...


class FirstState(NamedTuple):
    """The state before the first step.

    Attributes:
      state: all of it, on its devices.
      unchanged: paths of the frozen parameters that are as `train.init_from` has them.
    """

    state: TrainState
    unchanged: frozenset[str] = frozenset()


class Begin(NamedTuple):
    """The beginning of a run.

    Attributes:
      experiment: knows which weights checkpoints do not hold.
      state: the restored or new train state, whole.
      step: the number of steps already done.
      record: the record of the restored checkpoint; empty for a new run.
      notices: for the terminal.
    """

    experiment: "Experiment"
    state: TrainState
    step: int
    record: Json
    notices: list[str]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A prepared run, as `prepare_experiment` in runs/start/setup.py makes it of a config.

    Attributes:
      program: the compiled steps, and the shapes and shardings of the state.
      train_data, eval_data: the training and held-out examples.
      create_state: creates the state before the first step from the weights of a directory, or
        from random ones if it is "".
      begin: restores the newest checkpoint, or creates a state (runs/start/begin.py).
      name_rows: returns the file and line of each row of a step; [] if the data is gone.
      packers: what packs or cuts the batches of "train_step" and "eval_step".
      base: the weights that are read at every start, and not saved; None if there are none.
      about_data: rows of the run's banner about its data.
    """

    program: Program
    train_data: RunData
    eval_data: RunData
    create_state: Callable[[str], FirstState]
    begin: Callable[["Experiment", Checkpoints, Mirror, Processes], Begin]
    name_rows: Callable[[int], list[str]]
    packers: Mapping[str, Packer | Buckets | None] = dataclasses.field(default_factory=dict)
    base: Base | None = None
    about_data: tuple[tuple[str, str], ...] = ()

    @property
    def cfg(self) -> ExperimentConfig:
        return self.program.cfg

    def with_base(self, base: Base | None) -> "Experiment":
        """Leaves these weights out of what the run saves."""
        leaves = () if base is None else base.leaves
        return dataclasses.replace(self, program=self.program.without_saving(leaves), base=base)

    def recreate_state(self) -> TrainState:
        """Creates the state before the first step once more, after the run has begun.

        Raises:
          ConfigError: the weights that it began with are not there.
          CheckpointError: they are others now.
        """
        base = self.base
        init_from = self.cfg.train.init_from
        if base is None or not base.source:
            return self.create_state(init_from).state
        # Also of a run with a copy, which lacks what was trained from there on.
        source = base.place(init_from)
        state = self.create_state(source).state
        flat = flatten_dict(state.params, sep="/")
        base.check(describe_leaves({path: flat[path] for path in base.leaves}), source)
        return state

    def is_due(self, step: int, every: int) -> bool:
        """Returns whether something that happens every N steps is due after this one.

        It always is after the last step; with every=0, after the first that completes an epoch.
        """
        train = self.cfg.train
        if step == train.steps:
            return True
        if every:
            return step % every == 0
        rows = self.train_data.num_examples
        return step * train.batch_size // rows > (step - 1) * train.batch_size // rows

    def train_batches(self, start: int) -> BatchIterator:
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
        data = self.eval_data.of_split(split)
        packer = self.packers.get("eval_step")
        buckets = None
        if isinstance(packer, Buckets):
            buckets = dataclasses.replace(packer, sizes=data.records.sizes)
        batches = self._placed(data, 0, packer=buckets)
        _, shuffled = evaluate.run(self.program.eval_step, params, batches, data)
        # The argsort of a permutation is its inverse.
        return shuffled[name][np.argsort(data.order)]

    def with_reference(self, reference: Mapping[str, np.ndarray]) -> "Experiment":
        """Adds a prediction of the starting weights to the examples of each split."""
        return dataclasses.replace(
            self,
            train_data=self.train_data.with_reference(reference),
            eval_data=self.eval_data.with_reference(reference),
        )

    def writer(self, params: Params) -> Writer:
        """Returns a function that continues prompts with these parameters."""
        return make_writer(
            self.program.model,
            self.program.models.own_params(params),
            self.eval_data.tokenizer,
        )

    def _placed(
        self, data: RunData, start: int, ahead: int = 0, packer: Packer | Buckets | None = None
    ) -> BatchIterator:
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
