"""Stochastic gradient descent; `b1` is the decay of its momentum."""

import optax

from flaxformer_lite.config import OptimizerConfig


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the momentum, a sum of gradients."""
    return optax.trace(cfg.b1)
