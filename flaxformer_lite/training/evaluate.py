"""Evaluation on held-out examples."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from flaxformer_lite.objectives.sums import BY_SOURCE, LossSums

WRITTEN = 2  # held-out examples whose texts are shown


def evaluate(
    objective: Any,
    eval_step: Callable,
    params: Any,
    batches: Iterable[Any],
    data: Any,
    write: Any = None,
) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Computes the objective's metrics over all batches, with each target counted once.

    Args:
      eval_step: (params, batch) -> (LossSums, predictions); from training/step.py, compiled.
      write: from generation/writer.py, for metrics of what the model writes.

    Returns:
      The metrics, and a few of the texts that were written for them, each with a title.
    """
    total, predictions = run(eval_step, params, batches, data)
    metrics = metrics_of(objective, total, predictions, data)
    if write and objective.written_rows:
        examples = data.order[: objective.written_rows]
        written = objective.write(write, data.records, examples)
        metrics |= objective.scores(written, examples, data)
        return metrics, show(objective, written, examples, data)
    return metrics, []


def show(
    objective: Any, written: dict[str, np.ndarray], examples: np.ndarray, data: Any
) -> list[tuple[str, str]]:
    """Returns what was written for the first of the examples, each text with a title."""
    few = {name: values[:WRITTEN] for name, values in written.items()}
    return objective.show_written(few, examples[:WRITTEN], data)


def metrics_of(
    objective: Any, total: LossSums, predictions: dict[str, np.ndarray], data: Any
) -> dict[str, float]:
    """Computes the objective's metrics from what `run` returns."""
    metrics = {name: float(value) for name, value in objective.metrics(total).items()}
    metrics = {
        name: value
        for name, value in metrics.items()
        if not (name.startswith(BY_SOURCE) and math.isnan(value))
    }
    if predictions:
        examples = data.order[: len(next(iter(predictions.values())))]
        metrics |= objective.scores(predictions, examples, data)
    return objective.held_out_metrics(metrics, data)


def run(
    eval_step: Callable, params: Any, batches: Iterable[Any], data: Any
) -> tuple[LossSums, dict[str, np.ndarray]]:
    """Returns the sums over all batches, and the predictions for each example, in the order of
    `data.order`."""
    total = None
    kept = []
    for batch in batches:
        # One program at a time: with several in flight, two processes on CPU may start different
        # ones and deadlock.
        sums, predictions = jax.device_get(eval_step(params, batch))
        total = sums if total is None else jax.tree.map(np.add, total, sums)
        kept.append(predictions)
    assert total is not None, "no batches"
    joined = {
        name: np.concatenate([part[name] for part in kept])[: data.num_examples] for name in kept[0]
    }
    return total, joined
