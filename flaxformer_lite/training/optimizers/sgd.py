"""Stochastic gradient descent; `b1` is the decay of its momentum."""

import optax

from flaxformer_lite.config import OptimizerConfig


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds plain momentum, `m <- b1 m + g`; with b1 = 0 it is the gradient itself."""
    return optax.trace(cfg.b1)
