"""AdamW: Loshchilov and Hutter (2019), algorithm 2."""

import optax

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise

WIDTH_POWERS = elementwise.WIDTH_POWERS


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the direction m / (sqrt(v) + eps) of bias-corrected means."""
    return optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps)
