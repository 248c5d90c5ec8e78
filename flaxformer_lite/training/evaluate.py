"""Metrics of held-out examples."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np


def evaluate(objective: Any, eval_step: Callable, params: Any, batches: Iterable[Any], data: Any) -> dict[str, float]:
    """The objective's metrics over all batches, each target counted once.

    Args:
      objective: of objectives/.
      eval_step: (params, batch) -> LossSums; from training/step.py, compiled.
      params: the model's.
      batches: placed on the devices.
      data: the held-out Dataset, for metrics that need to know more of it.
    """
    total = None
    for batch in batches:
        # One program at a time: of several in flight, two processes on CPU may each begin with another, and wait for ever.
        sums = jax.device_get(eval_step(params, batch))
        total = sums if total is None else jax.tree.map(np.add, total, sums)
    metrics = {name: float(value) for name, value in objective.metrics(total).items()}
    return objective.held_out_metrics(metrics, data)
