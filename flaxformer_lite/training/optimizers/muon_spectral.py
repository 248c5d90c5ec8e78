"""Muon at a constant spectral norm: Jordan et al. (2024), with the rule of its author's code.

Its rate for matrices of hidden layers is the `learning_rate` times `MATRIX_RATE`, so that one rate
serves both them and the parameters that Adam updates. Otherwise it is as `muon`.
"""

import math

import jax
import optax
from optax import contrib

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import elementwise, hidden_matrices

# The ratio of the rates that the author's speedruns of GPT-2 use: 0.02 and about 1e-3.
MATRIX_RATE = 20.0
# The spectral norm of an update does not depend on the width.
WIDTH_POWERS = ((hidden_matrices.PROJECTION.pattern, 0.0), *elementwise.WIDTH_POWERS)


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds orthogonal matrices times sqrt(max(1, outputs / inputs))."""
    muon = contrib.scale_by_muon(
        beta=cfg.b1, weight_dimension_numbers=hidden_matrices.dimension_numbers
    )
    sized = optax.chain(muon, optax.stateless(_to_spectral_size))
    return hidden_matrices.split(sized, hidden_matrices.adam(cfg))


def _to_spectral_size(updates: optax.Updates, _: object) -> optax.Updates:
    def scale(update: jax.Array, numbers: contrib.MuonDimensionNumbers) -> jax.Array:
        fan_in, fan_out = hidden_matrices.fans(update, numbers)
        return update * (MATRIX_RATE * math.sqrt(max(1.0, fan_out / fan_in)))

    return jax.tree.map(scale, updates, hidden_matrices.dimension_numbers(updates))
