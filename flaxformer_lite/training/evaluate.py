"""Held-out loss, perplexity, accuracy and bits per byte."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from flaxformer_lite.training import step
from flaxformer_lite.training.report.metrics import text_loss


def evaluate(eval_step: Callable, params: Any, batches: Iterable[Any], bytes_per_target: float) -> dict[str, float]:
    """Means over all batches, each target counted once.

    Args:
      eval_step: (params, batch) -> LossSums; from training/step.py, compiled.
      params: the model's.
      batches: placed on the devices.
      bytes_per_target: UTF-8 bytes of text that a target stands for on average.

    Returns:
      loss; the objective's metrics; perplexity, exp(nll); and bits_per_byte, nll / ln 2 / bytes_per_target.
    """
    total = None
    for batch in batches:
        # One program at a time: of several in flight, two processes on CPU may each begin with another, and wait for ever.
        sums = jax.device_get(eval_step(params, batch))
        total = sums if total is None else jax.tree.map(np.add, total, sums)
    out = {name: float(value) for name, value in step.means(total).items()}
    nll = text_loss(out)
    return out | {"perplexity": math.exp(min(nll, 700.0)), "bits_per_byte": nll / math.log(2) / bytes_per_target}
