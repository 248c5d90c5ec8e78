"""Replays a step of a run: the state before it, its metrics, and the loss of each of its rows."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.checkpoints.frozen_base import read_base
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import StepTools
from flaxformer_lite.registry import Allowed
from flaxformer_lite.runs import batch_history, padding
from flaxformer_lite.runs.best import Best
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.report.meter import average_metrics
from flaxformer_lite.runs.start import reference, resume
from flaxformer_lite.runs.start.referenced_weights import complete_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.runs.trainer import Metrics as StepMetrics, TrainStep
from flaxformer_lite.training import program
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Batch

Values = Mapping[str, float]


class ReplayPoint(NamedTuple):
    """A run just before a step.

    Attributes:
      state: the train state, which `take` donates.
      batch: the batch, prepared with the weights before the step if the objective does so.
      update: takes the step with this batch; donates the state.
      shown: lines of each row that the objective shows of the batch; () if it shows none.
      step: the number of the step, from 1.
      start: the step of the checkpoint from which the run was repeated, or 0.
      values: the metrics of the steps since, by step.
      notices: reasons why the numbers may differ from the run's.
    """

    experiment: Experiment
    state: TrainState
    batch: Batch
    update: Callable[[TrainState], tuple[TrainState, StepMetrics]]
    shown: Sequence[Sequence[str]]
    step: int
    start: int
    values: dict[int, Values]
    notices: list[str]


def before_step(folder: Path, step: int, *, allow_plugins: Allowed = False) -> ReplayPoint:
    """Repeats a run from its nearest checkpoint until just before a step.

    Nothing is written into the workdir.

    Args:
      folder: the workdir.
      step: from 1.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: there is no such step, or data have changed since.
    """
    cfg = batch_history.read_config(folder, allow_plugins=allow_plugins)
    last = batch_history.last_step(folder, cfg)
    if step - cfg.train.log_every >= last:  # fewer may have been taken without a record
        raise ConfigError(
            f"--at={step}: the last step in metrics.jsonl is {last}; name one that was taken."
        )
    experiment = prepare_experiment(cfg)
    batch_history.check_data(folder, experiment.train_data)
    history = batch_history.BatchHistory(experiment.cfg, experiment.train_data)
    history.rows(step)  # raises if there is no such step

    def saved_target(record: Json) -> TrainState:
        program = experiment.with_base(read_base(folder, record.get("base", ""))).program
        return program.saved(program.target)

    restored = workdir.read_state(folder, saved_target, step - 1)
    start = restored.step
    notices = list(restored.notices)
    if start:
        notices += resume.notices(restored.meta, experiment.cfg)
        base = read_base(folder, restored.meta.get("base", ""))
        experiment = experiment.with_base(base)
        state = complete_state(experiment.program, restored.state, base, folder)
    else:
        experiment = experiment.with_base(workdir.read_newest_base(folder))
        state = experiment.recreate_state()
    experiment = reference.attach(experiment, state, start, folder, writes=False)
    values: dict[int, Values] = {}
    kept = metrics.read_collected(folder, range(start + 1, step + 1))
    tools = StepTools(load_record=lambda number: kept.get(number, {}), show_notice=notices.append)
    stepper = experiment.cfg.objective.make_stepper(experiment, tools)
    train_step: TrainStep = stepper or experiment.program.train_step
    with contextlib.closing(experiment.train_batches(start)) as batches:
        for number in range(start + 1, step):
            state, step_metrics = train_step(state, next(batches))
            values[number] = _floats(step_metrics)
        batch = next(batches)
        shown: Sequence[Sequence[str]] = ()
        update = functools.partial(_take_step, train_step, batch)
        complete = getattr(train_step, "complete", None)
        take_completed = getattr(train_step, "update", None)
        if complete and take_completed:
            completed = complete(state, batch)
            batch = completed.batch
            shown = completed.shown
            update = functools.partial(take_completed, completed=completed)
        return ReplayPoint(experiment, state, batch, update, shown, step, start, values, notices)


def row_losses(point: ReplayPoint) -> np.ndarray:
    """Computes the loss of each row by itself, before the step, without dropout: float32 [B]."""
    cfg = point.experiment.cfg
    sums = program.eval_step(cfg, point.experiment.program.models)

    def row_loss(row: Batch) -> jax.Array:
        return sums(point.state.params, jax.tree.map(lambda x: x[None], row))[0].mean()

    batch = padding.unpacked(point.batch)  # only whole batches have rows to pack
    return np.asarray(jax.jit(functools.partial(jax.lax.map, row_loss))(batch))


def take(point: ReplayPoint) -> tuple[TrainState, Values]:
    """Runs the step; returns the state after it, and its metrics.

    `point.state` is donated, and cannot be used afterwards.
    """
    state, step_metrics = point.update(point.state)
    return state, _floats(step_metrics)


def compare(folder: Path, values: Mapping[int, Values]) -> dict[int, float]:
    """Compares repeated steps with metrics.jsonl.

    Args:
      folder: the workdir.
      values: the metrics of neighboring steps.

    Returns:
      The largest relative difference of loss and grad_norm, by step, for each record that is the
      mean of such steps.
    """
    gaps = {}
    before = 0
    for record in metrics.read(folder / "metrics.jsonl"):
        if record["split"] != "train":
            continue
        last = record["step"]
        if last in values:
            steps = [values[step] for step in range(before + 1, last + 1) if step in values]
            # A restart may cut a record's interval short: the mean is of its last few steps.
            gap = min(_gap(record, average_metrics(steps[i:])) for i in range(len(steps)))
            if before + 1 in values or not gap:
                gaps[last] = gap
        before = last
    return gaps


def save(point: ReplayPoint, state: TrainState, folder: Path) -> None:
    """Writes the state after the step as a checkpoint of a new workdir, from which a run continues.

    Raises:
      ConfigError: the folder exists already, perhaps made while the steps were repeated.
      CheckpointError: it cannot be written.
    """
    if folder.exists():
        raise ConfigError(f"--output={folder}: exists already; name a new folder.")
    run = point.experiment.with_base(None)  # the new workdir holds all weights
    meta = resume.meta(run.cfg, run.train_data.fingerprint, point.step)
    meta["best"] = Best()._asdict()
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(point.step, run.program.saved(state), meta)
    run_inputs.write_inputs(folder, run.cfg, run.train_data.tokenizer, run.train_data.fingerprint)


def _take_step(
    train_step: TrainStep, batch: Batch, state: TrainState
) -> tuple[TrainState, StepMetrics]:
    return train_step(state, batch)


def _floats(step_metrics: Mapping[str, jax.Array | float]) -> Values:
    return {name: float(value) for name, value in jax.device_get(step_metrics).items()}


def _gap(record: Values, repeated: Values) -> float:
    return max(_relative(record[name], repeated[name]) for name in ("loss", "grad_norm"))


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), math.ulp(1.0))
