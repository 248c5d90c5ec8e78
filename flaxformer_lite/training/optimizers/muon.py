"""Muon at the size of Adam's updates: Jordan et al. (2024), scaled as in Liu et al. (2025).

`b1` is the decay of its momentum, and with `b2` and `eps` they are Adam's for all parameters but
the matrices of hidden layers.
"""

import math

import optax

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise, hidden_matrices

ADAM_SIZE = 0.2  # the root mean square of Adam's updates, Liu et al. (2025), section 2.2
# An orthogonal D x D matrix of entries of constant size moves its output by sqrt(D).
WIDTH_POWERS = ((hidden_matrices.PROJECTION.pattern, -0.5), *elementwise.WIDTH_POWERS)


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds orthogonal matrices of root mean square 0.2: times 0.2 sqrt(max(A, B)) for A x B."""
    return hidden_matrices.orthogonal(
        cfg, lambda inputs, outputs: ADAM_SIZE * math.sqrt(max(inputs, outputs))
    )
