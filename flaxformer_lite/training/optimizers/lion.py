"""Lion: Chen et al. (2023), algorithm 2. Uses no eps."""

import optax

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise

WIDTH_POWERS = elementwise.WIDTH_POWERS


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the sign of an interpolation between momentum and gradient."""
    return optax.scale_by_lion(cfg.b1, cfg.b2)
