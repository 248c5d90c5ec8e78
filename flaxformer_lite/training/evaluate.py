"""Evaluation on held-out examples."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from flaxformer_lite.objectives.sums import LossSums


def evaluate(
    objective: Any, eval_step: Callable, params: Any, batches: Iterable[Any], data: Any, write: Any = None
) -> dict[str, float]:
    """Computes the objective's metrics over all batches, with each target counted once.

    Args:
      objective: the objective.
      eval_step: (params, batch) -> (LossSums, predictions); from training/step.py, compiled.
      params: the model's parameters.
      batches: batches on the devices.
      data: the held-out Dataset, for metrics that depend on it.
      write: from generation/writer.py, for metrics of what the model writes.
    """
    total, predictions = run(eval_step, params, batches, data)
    metrics = metrics_of(objective, total, predictions, data)
    if write and objective.written_rows:
        examples = data.order[: objective.written_rows]
        metrics |= objective.scores(objective.write(write, data.records, examples), examples, data)
    return metrics


def metrics_of(objective: Any, total: LossSums, predictions: dict[str, np.ndarray], data: Any) -> dict[str, float]:
    """Computes the objective's metrics from what `run` returns."""
    metrics = {name: float(value) for name, value in objective.metrics(total).items()}
    if predictions:
        examples = data.order[: len(next(iter(predictions.values())))]
        metrics |= objective.scores(predictions, examples, data)
    return objective.held_out_metrics(metrics, data)


def run(eval_step: Callable, params: Any, batches: Iterable[Any], data: Any) -> tuple[LossSums, dict[str, np.ndarray]]:
    """Returns the sums over all batches, and the predictions for each example, in the order of `data.order`."""
    total, kept = None, []
    for batch in batches:
        # One program at a time: with several in flight, two processes on CPU may start different ones and deadlock.
        sums, predictions = jax.device_get(eval_step(params, batch))
        total = sums if total is None else jax.tree.map(np.add, total, sums)
        kept.append(predictions)
    assert total is not None, "no batches"
    joined = {name: np.concatenate([part[name] for part in kept])[: data.num_examples] for name in kept[0]}
    return total, joined
