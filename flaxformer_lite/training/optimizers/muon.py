"""Muon at the size of Adam's updates: Jordan et al. (2024), scaled as in Liu et al. (2025).

`b1` is the decay of its momentum, and with `b2` and `eps` they are Adam's for all parameters but
the matrices of hidden layers.
"""

import math

import jax
import optax
from optax import contrib

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise, hidden_matrices

ADAM_SIZE = 0.2  # the root mean square of Adam's updates, Liu et al. (2025), section 2.2
# An orthogonal D x D matrix of entries of constant size moves its output by sqrt(D).
WIDTH_POWERS = ((hidden_matrices.PROJECTION.pattern, -0.5), *elementwise.WIDTH_POWERS)


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds orthogonal matrices of root mean square 0.2: times 0.2 sqrt(max(A, B)) for A x B."""
    muon = contrib.scale_by_muon(
        beta=cfg.b1, weight_dimension_numbers=hidden_matrices.dimension_numbers
    )
    sized = optax.chain(muon, optax.stateless(_to_adam_size))
    return hidden_matrices.split(sized, hidden_matrices.adam(cfg))


def _to_adam_size(updates: optax.Updates, _: object) -> optax.Updates:
    def scale(update: jax.Array, numbers: contrib.MuonDimensionNumbers) -> jax.Array:
        return update * (ADAM_SIZE * math.sqrt(max(hidden_matrices.fans(update, numbers))))

    return jax.tree.map(scale, updates, hidden_matrices.dimension_numbers(updates))
