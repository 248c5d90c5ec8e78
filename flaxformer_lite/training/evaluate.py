"""Evaluation on held-out examples."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np


def evaluate(objective: Any, eval_step: Callable, params: Any, batches: Iterable[Any], data: Any) -> dict[str, float]:
    """Computes the objective's metrics over all batches, with each target counted once.

    Args:
      objective: the objective.
      eval_step: (params, batch) -> LossSums; from training/step.py, compiled.
      params: the model's parameters.
      batches: batches on the devices.
      data: the held-out Dataset, for metrics that depend on it.
    """
    total = None
    for batch in batches:
        # One program at a time: with several in flight, two processes on CPU may start different ones and deadlock.
        sums = jax.device_get(eval_step(params, batch))
        total = sums if total is None else jax.tree.map(np.add, total, sums)
    metrics = {name: float(value) for name, value in objective.metrics(total).items()}
    return objective.held_out_metrics(metrics, data)
