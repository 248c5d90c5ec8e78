"""A step of a run, run again: the state before it, its metrics, and the loss of each of its
rows."""

import contextlib
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError
from flaxformer_lite.registry import Allowed
from flaxformer_lite.runs import batch_history
from flaxformer_lite.runs.best import Best
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.report.meter import means
from flaxformer_lite.runs.start import companion, reference, resume
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import Experiment, prepare
from flaxformer_lite.training import bound_models, packing, program
from flaxformer_lite.training.state import TrainState

Values = Mapping[str, float]


class Moment(NamedTuple):
    """A run just before a step.

    Attributes:
      state: the train state, which a call of `experiment.program.train_step` takes over.
      step: its number, from 1.
      start: the checkpoint's from which the run was repeated, or 0.
      values: the metrics of the steps since, by their numbers.
      notices: why the numbers may differ from the run's.
    """

    experiment: Experiment
    state: TrainState
    batch: Any
    step: int
    start: int
    values: dict[int, Values]
    notices: list[str]


def before_step(folder: Path, step: int, *, allow_plugins: Allowed = False) -> Moment:
    """Repeats a run from its nearest checkpoint up to the step before one, writing nothing into its
    workdir.

    Args:
      folder: the workdir.
      step: from 1.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: there is no such step, or data have changed since.
    """
    cfg = batch_history.read_config(folder, allow_plugins=allow_plugins)
    if step - cfg.train.log_every >= (
        last := batch_history.last_step(folder, cfg)
    ):  # as many may have been taken unrecorded
        raise ConfigError(
            f"--at={step}: the last step that metrics.jsonl records is {last}; name one that was"
            " taken."
        )
    experiment = prepare(cfg)
    batch_history.check_data(folder, experiment.train_data)
    batch_history.Past(experiment.cfg, experiment.train_data).rows(
        step
    )  # refuses a step that there is not
    found = workdir.read_state(
        folder, experiment.program.saved(experiment.program.target), step - 1
    )
    make = functools.partial(initial_state, experiment.program, cfg.train.init_from)
    start = found.step
    notices = list(found.notices)
    notices += resume.notices(found.meta, experiment.cfg) if start else []
    state = companion.complete(experiment.program, found.state) if start else make()
    experiment = reference.attach(experiment, state, start, make, folder, writes=False)
    values: dict[int, Values] = {}
    with contextlib.closing(experiment.train_batches(start)) as batches:
        for number in range(start + 1, step):
            state, told = experiment.program.train_step(state, next(batches))
            values[number] = {name: float(value) for name, value in jax.device_get(told).items()}
        return Moment(experiment, state, next(batches), step, start, values, notices)


def row_losses(moment: Moment) -> np.ndarray:
    """Computes the loss of each row of the batch by itself, before the step and without dropout,
    float32 [B]."""
    cfg = moment.experiment.cfg
    sums = program.eval_step(cfg, bound_models.build(cfg, moment.experiment.program.companion))

    def one(row: Any) -> jax.Array:
        return sums(moment.state.params, jax.tree.map(lambda x: x[None], row))[0].mean()

    batch = packing.unpacked(moment.batch)  # only whole batches have rows to pack
    return np.asarray(jax.jit(functools.partial(jax.lax.map, one))(batch))


def take(moment: Moment) -> tuple[TrainState, Values]:
    """Runs the step; returns the state after it, and its metrics. The moment's own state is gone
    then."""
    state, told = moment.experiment.program.train_step(moment.state, moment.batch)
    return state, {name: float(value) for name, value in jax.device_get(told).items()}


def compare(folder: Path, values: Mapping[int, Values]) -> dict[int, float]:
    """Compares repeated steps with metrics.jsonl.

    Args:
      folder: the workdir.
      values: the metrics of neighboring steps.

    Returns:
      For each record that has the mean of such steps, by its step: the largest relative difference
        of loss and grad_norm.
    """
    records = [
        record for record in metrics.read(folder / "metrics.jsonl") if record["split"] == "train"
    ]
    found = {}
    before = 0
    for record in records:
        steps = [values[step] for step in range(before + 1, record["step"] + 1) if step in values]
        # A record that a restart has cut short is the mean of the last few of its steps.
        gaps = (
            [_gap(record, means(steps[i:])) for i in range(len(steps))]
            if record["step"] in values
            else []
        )
        if gaps and (before + 1 in values or not min(gaps)):
            found[record["step"]] = min(gaps)
        before = record["step"]
    return found


def save(moment: Moment, state: TrainState, folder: Path) -> None:
    """Writes the state after the step as the checkpoint of a new workdir, from which a run can
    continue.

    Raises:
      ConfigError: the folder is there already, perhaps since the steps began to be repeated.
      CheckpointError: it cannot be written.
    """
    if folder.exists():
        raise ConfigError(f"--output={folder}: is there already; name a new folder.")
    run = moment.experiment
    meta = {**resume.meta(run.cfg, run.fingerprint, moment.step), "best": Best()._asdict()}
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(moment.step, run.program.saved(state), meta)
    workdir.write_inputs(folder, run.cfg, run.train_data.tokenizer, run.train_data.fingerprint)


def _gap(record: Values, own: Values) -> float:
    pairs = [(record[name], own[name]) for name in ("loss", "grad_norm")]
    return max(
        0.0 if a == b or (a != a and b != b) else abs(a - b) / max(abs(a), math.ulp(1.0))
        for a, b in pairs
    )
