"""The step of an objective whose batches are completed first: draws, rewards, and updates."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.rl.rollout import Drawn, RolloutObjective
from flaxformer_lite.contrib.rl.sampler import draw_continuations
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import StepTools
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Array, Batch, Params

Values = Mapping[str, jax.Array | float]
COMPARED = "rewards"  # the part of a record that must be the same again


class Completed(NamedTuple):
    """A batch that is ready for its updates.

    Attributes:
      step: the number of its step, from 1.
      batch: what the updates read.
      metrics: numbers that completing it gave.
      shown: lines that show each row.
    """

    step: int
    batch: Batch
    metrics: dict[str, float]
    shown: list[list[str]]


class RolloutStepper:
    """The step (state, batch) -> (state, metrics) of a rollout objective, for a `Trainer`.

    Rewards are tried once when it is made.

    Args:
      experiment: the run.
      objective: the run's objective.
      tools: what the run lets a step do.

    Raises:
      ConfigError: a reward cannot work.
    """

    ahead = 0  # a batch is completed once the step before it has ended

    def __init__(self, experiment: Experiment, objective: RolloutObjective, tools: StepTools):
        self._experiment = experiment
        self._objective = objective
        self._tools = tools
        objective.rehearse(experiment.train_data.records)

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Values]:
        return self.update(state, self.complete(state, batch))

    def complete(self, state: TrainState, batch: Batch) -> Completed:
        """Completes a batch with the weights before its step.

        Raises:
          RunError: it cannot be completed.
        """
        run = self._experiment
        objective = self._objective
        step = int(state.step) // objective.updates_per_step + 1
        policy = _CurrentPolicy(run, state.params, batch, step, self._tools.share_values)
        examples = _gather(batch["inputs"]["example"])
        try:
            with self._tools.time_section("completing"):
                collected = objective.collect(policy, run.train_data.records, examples)
        except ConfigError as error:
            raise RunError(f"step {step}: {error}") from error
        record = {"step": step, **collected.record}
        record["shown"] = _show_rows(objective, record, len(examples))
        self._compare(record)
        self._tools.save_record(record)
        whole = jax.tree.map(functools.partial(_place, run), collected.batch)
        shown = _show_rows(objective, record | collected.details, len(examples))
        return Completed(step, whole, collected.metrics, shown)

    def update(self, state: TrainState, completed: Completed) -> tuple[TrainState, Values]:
        """Makes the updates of a step; donates the state.

        Returns:
          The state after it, and its metrics, means over the updates.

        Raises:
          RunError: the first update computed something else than the completed batch says.
        """
        run = self._experiment
        objective = self._objective
        made: list[Values] = []
        for update in range(objective.updates_per_step):
            batch = completed.batch
            if update > 0:
                numbers = np.full(run.cfg.train.batch_size, update, np.int32)
                batch = {**batch, "inputs": {**batch["inputs"], "update": _place(run, numbers)}}
            state, metrics = run.program.train_step(state, batch)
            made.append(metrics)
            if update == 0:
                first = {name: float(x) for name, x in metrics.items()} | completed.metrics
                try:
                    objective.check_first_update(first, run.cfg.model.dtype)
                except ConfigError as error:
                    raise RunError(f"step {completed.step}: {error}") from error
        means: dict[str, jax.Array | float] = {}
        for name in made[0]:
            means[name] = sum(metrics[name] for metrics in made) / len(made)
        return state, means | completed.metrics

    def _compare(self, record: Json) -> None:
        """Warns when a replayed step gets other rewards for the same answers."""
        before = self._tools.load_record(record["step"])
        for name, values in before.get(COMPARED, {}).items():
            if before["written"] == record["written"] and record[COMPARED][name] != values:
                self._tools.show_notice(
                    f"reward {name} gave the same answers of step {record['step']} other numbers;"
                    " it is no function of its arguments, so the run cannot be repeated."
                )


def _show_rows(objective: RolloutObjective, record: Json, rows: int) -> list[list[str]]:
    return [objective.show_collected(record, row) for row in range(rows)]


def _place(run: Experiment, array: Array) -> jax.Array:
    """Places an array of one row per row of a batch on the devices; all processes have all rows."""
    size = run.cfg.train.batch_size
    own = np.asarray(array)[np.asarray(sharding.batch_rows(run.program.mesh, size))]
    placed = sharding.place_batch([own], run.program.mesh, size)
    return jax.tree.leaves(placed)[0]


def _gather(array: Array) -> np.ndarray:
    """Returns an array of the devices of all processes, whole on each."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


class _CurrentPolicy:
    """The model with the weights before a step (`CurrentPolicy` in rollout.py)."""

    def __init__(
        self,
        run: Experiment,
        params: Params,
        batch: Batch,
        step: int,
        share_values: Callable[[Json], list[Json]],
    ):
        self._run = run
        self._share_values = share_values
        self._params = params
        self._targets = batch["targets"]
        # Other numbers for each step, whatever the seeds of two runs have in common.
        self._seed = int(np.random.SeedSequence([run.cfg.seed, step]).generate_state(1)[0])

    @property
    def dtype(self) -> str:
        return self._run.cfg.model.dtype

    def draw(self, prompts: Sequence[np.ndarray], **settings: Any) -> list[Drawn]:
        program = self._run.program
        return draw_continuations(
            program.model,
            program.models.own_params(self._params),
            prompts,
            pad_token_id=self._run.train_data.tokenizer.pad_id,
            seed=self._seed,
            place=functools.partial(_place, self._run),
            gather=_gather,
            **settings,
        )

    def predict(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        placed = jax.tree.map(functools.partial(_place, self._run), inputs)
        batch = {"inputs": placed, "targets": self._targets}
        _, predictions = self._run.program.eval_step(self._params, batch)
        return jax.tree.map(_gather, predictions)

    def share(self, compute: Callable[[range], np.ndarray], prompts: int) -> np.ndarray:
        ends = np.linspace(0, prompts, jax.process_count() + 1).astype(int).tolist()
        index = jax.process_index()
        own: list = []
        why = ""
        try:
            if ends[index] < ends[index + 1]:
                own = compute(range(ends[index], ends[index + 1])).tolist()
        except ConfigError as error:
            why = str(error)
        parts = self._share_values({"rows": own, "why": why})
        for part in parts:
            if part["why"]:
                raise ConfigError(part["why"])
        whole = [row for part in parts for row in part["rows"]]
        return np.asarray(whole, np.float32)
