"""Evaluation on held-out examples."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from flaxformer_lite.objectives.base import Dataset, Objective, Writer, WritesText
from flaxformer_lite.objectives.sums import BY_SOURCE, LossSums
from flaxformer_lite.objectives.tables.breakdown import Breakdown
from flaxformer_lite.types import Batch, Params

SHOWN_TEXTS = 2  # held-out examples whose texts are shown


class EvaluationResult(NamedTuple):
    """The result of an evaluation.

    Attributes:
      metrics: values by name.
      texts: a few of the texts that were generated, each with a title.
      breakdown: tables, such as the scores per class.
    """

    metrics: dict[str, float]
    texts: list[tuple[str, str]]
    breakdown: list[Breakdown]


def evaluate(
    objective: Objective,
    eval_step: Callable,
    params: Params,
    batches: Iterable[Batch],
    data: Dataset,
    write: Writer | None = None,
) -> EvaluationResult:
    """Computes the objective's metrics over all batches, with each target counted once.

    Args:
      objective: defines the metrics.
      eval_step: compiled function (params, batch) -> (LossSums, predictions), as
        `training.step.eval_step` builds it.
      params: the parameters to evaluate.
      batches: all batches of the held-out data.
      data: the held-out data.
      write: generates text (inference/writer.py), for metrics of generated text.
    """
    total, predictions = run(eval_step, params, batches, data)
    metrics = metrics_of(objective, total, predictions, data)
    breakdown = []
    if predictions:
        breakdown = objective.breakdown(predictions, _examples(predictions, data), data)
    if write and isinstance(objective, WritesText) and objective.written_rows:
        examples = data.order[: objective.written_rows]
        written = objective.write(write, data.records, examples)
        metrics |= objective.scores(written, examples, data)
        breakdown += objective.breakdown(written, examples, data)
        return EvaluationResult(metrics, show_texts(objective, written, examples, data), breakdown)
    return EvaluationResult(metrics, [], breakdown)


def show_texts(
    objective: WritesText, written: dict[str, np.ndarray], examples: np.ndarray, data: Dataset
) -> list[tuple[str, str]]:
    """Returns the texts generated for the first examples, each with a title."""
    few = {name: values[:SHOWN_TEXTS] for name, values in written.items()}
    return objective.show_written(few, examples[:SHOWN_TEXTS], data)


def metrics_of(
    objective: Objective, total: LossSums, predictions: dict[str, np.ndarray], data: Dataset
) -> dict[str, float]:
    """Computes the objective's metrics from what `run` returns."""
    metrics = {}
    for name, value in total.means().items():
        figure = float(value)
        if not (name.startswith(BY_SOURCE) and math.isnan(figure)):  # NaN: the source has no row
            metrics[name] = figure
    if predictions:
        metrics |= objective.scores(predictions, _examples(predictions, data), data)
    return objective.held_out_metrics(metrics, data)


def _examples(predictions: dict[str, np.ndarray], data: Dataset) -> np.ndarray:
    """Returns the indices of the examples that were predicted, [examples]."""
    return data.order[: len(next(iter(predictions.values())))]


def run(
    eval_step: Callable, params: Params, batches: Iterable[Batch], data: Dataset
) -> tuple[LossSums, dict[str, np.ndarray]]:
    """Returns the sums over all batches, and the predictions in the order of `data.order`."""
    total = None
    kept = []
    for batch in batches:
        # One program at a time: with several in flight, two processes on CPU may start them in
        # different orders and deadlock.
        sums, predictions = jax.device_get(eval_step(params, batch))
        if total is None:
            total = sums
        else:
            total = jax.tree.map(np.add, total, sums)
        kept.append(predictions)
    assert total is not None, "no batches"
    joined = {}
    for name in kept[0]:
        joined[name] = _concatenated([part[name] for part in kept])[: data.num_examples]
    return total, joined


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenates the rows of batches, with zeros for columns that a batch lacks.

    Batches may be cut behind their longest text.
    """
    shape = np.max([part.shape[1:] for part in parts], axis=0)
    widened = []
    for part in parts:
        missing = shape - part.shape[1:]
        if missing.any():
            behind = [(0, int(count)) for count in missing]
            part = np.pad(part, [(0, 0), *behind])
        widened.append(part)
    return np.concatenate(widened)
