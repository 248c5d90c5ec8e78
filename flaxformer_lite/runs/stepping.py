"""A step of a run: completes its batch if the objective does so, and updates the weights."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.sampler import draw_continuations
from flaxformer_lite.objectives.base import Drawn
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
      metrics: numbers that completing it gave.
      record: what the objective tells of it; {} if it needed no completing.
    """

    step: int
    batch: Batch
    metrics: dict[str, float]
    record: Json


class Stepper:
    """The step (state, batch) -> (state, metrics) of an experiment, for a `Trainer`.

    Args:
      experiment: the run.
      keep: receives the record of each completed batch, before its first update.
      kept: returns the record of a step that the run has taken before, or {}.
      note: shows a notice.
      during: returns the context of a part of the time (runs/report/clock.py).
    """

    def __init__(
        self,
        experiment: Experiment,
        keep: Callable[[Json], None] = lambda record: None,
        kept: Callable[[int], Json] = lambda step: {},
        note: Callable[[str], None] = lambda line: None,
        during: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self._experiment = experiment
        self._keep = keep
        self._kept = kept
        self._note = note
        self._during = during
        if experiment.cfg.objective.collects and jax.process_count() > 1:
            raise ConfigError(
                "objective: its batches are completed in one process; start one, with all devices."
            )

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Values]:
        return self.update(state, self.complete(state, batch))

    def complete(self, state: TrainState, batch: Batch) -> Completed:
        """Completes a batch with the weights before its step, if the objective does so.

        Raises:
          RunError: it cannot be completed.
        """
        run = self._experiment
        objective = run.cfg.objective
        if not objective.collects:
            return Completed(0, batch, {}, {})
        step = int(state.step) // objective.updates_per_step + 1
        model = _Present(run, state.params, batch, step)
        examples = np.asarray(batch["inputs"]["example"])
        try:
            with self._during("completing"):
                collected = objective.collect(model, run.train_data.records, examples)
        except ConfigError as error:
            raise RunError(f"step {step}: {error}") from error
        record = {"step": step, **collected.record}
        self._compare(record)
        self._keep(record)
        whole = jax.tree.map(functools.partial(_place, run), collected.batch)
        return Completed(step, whole, collected.metrics, record | collected.details)

    def update(self, state: TrainState, completed: Completed) -> tuple[TrainState, Values]:
        """Makes the updates of a step; donates the state.

        Returns:
          The state after it, and its metrics, means over the updates.

        Raises:
          RunError: the first update computed something else than the completed batch says.
        """
        run = self._experiment
        objective = run.cfg.objective
        if not objective.collects:
            return run.program.train_step(state, completed.batch)
        made: list[Values] = []
        for number in range(objective.updates_per_step):
            batch = completed.batch
            if number:
                update = np.full(run.cfg.train.batch_size, number, np.int32)
                batch = {**batch, "inputs": {**batch["inputs"], "update": _place(run, update)}}
            state, metrics = run.program.train_step(state, batch)
            made.append(metrics)
            if not number:
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
        """Notices if a step that is taken again is rewarded otherwise for the same."""
        before = self._kept(record["step"])
        for name, values in before.get(COMPARED, {}).items():
            if before["written"] == record["written"] and record[COMPARED][name] != values:
                self._note(
                    f"reward {name} gave the same answers of step {record['step']} other numbers;"
                    " it is no function of its arguments, so the run cannot be repeated."
                )


def _place(run: Experiment, array: Array) -> jax.Array:
    """Places an array of one row per row of a batch on the devices."""
    placed = sharding.place_batch([array], run.program.mesh, run.cfg.train.batch_size)
    return jax.tree.leaves(placed)[0]


class _Present:
    """The model with the weights before a step (`PresentModel` in objectives/base.py)."""

    def __init__(self, run: Experiment, params: Params, batch: Batch, step: int):
        self._run = run
        self._params = params
        self._targets = batch["targets"]
        # Other numbers for each step, whatever the seeds of two runs have in common.
        self._seed = int(np.random.SeedSequence([run.cfg.seed, step]).generate_state(1)[0])

    @property
    def dtype(self) -> str:
        return self._run.cfg.model.dtype

    def draw(self, prompts: list[np.ndarray], **settings) -> list[Drawn]:
        program = self._run.program
        return draw_continuations(
            program.model,
            program.models.own_params(self._params),
            prompts,
            pad_token_id=self._run.train_data.tokenizer.pad_id,
            seed=self._seed,
            place=functools.partial(_place, self._run),
            **settings,
        )

    def predict(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        placed = jax.tree.map(functools.partial(_place, self._run), inputs)
        batch = {"inputs": placed, "targets": self._targets}
        _, predictions = self._run.program.eval_step(self._params, batch)
        return jax.device_get(predictions)
