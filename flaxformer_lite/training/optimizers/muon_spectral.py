"""Muon at a constant spectral norm: Jordan et al. (2024), with the rule of its author's code.

Its rate for matrices of hidden layers is the `learning_rate` times `MATRIX_RATE`, so that one rate
serves both them and the parameters that Adam updates. Otherwise it is as `muon`.
"""

import math

import optax

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise, hidden_matrices

# The ratio of the rates that the author's speedruns of GPT-2 use: 0.02 and about 1e-3.
MATRIX_RATE = 20.0
# The spectral norm of an update does not depend on the width.
WIDTH_POWERS = ((hidden_matrices.PROJECTION.pattern, 0.0), *elementwise.WIDTH_POWERS)


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds orthogonal matrices times sqrt(max(1, outputs / inputs))."""
    return hidden_matrices.orthogonal(
        cfg, lambda inputs, outputs: MATRIX_RATE * math.sqrt(max(1.0, outputs / inputs))
    )
