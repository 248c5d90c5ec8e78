"""Adam-mini, an optimizer written outside the package: one second moment for each block.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/mini
    --config.optimizer.name=examples.adam_mini:make

A block is a row of a table, a head of queries or keys, an output of any other matrix, or a whole
parameter of another kind.

Reference: Zhang et al. 2024, "Adam-mini: Use Fewer Learning Rates To Gain More"
  (arXiv:2406.16793), algorithm 3.
"""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training.optimizers import elementwise, hidden_matrices

WIDTH_POWERS = elementwise.WIDTH_POWERS
# A row of the head, like one of the table, belongs to a token.
TABLE = re.compile(r"(^|/)(embedding|position|token_types|task_types|(lm_head|vocab)/kernel)$")
HEADS = re.compile(r"(^|/)(query|key)/kernel$")


class AdamMiniState(NamedTuple):
    """The state of Adam-mini.

    Attributes:
      steps: int32 scalar, their number so far.
      mu: the mean of the gradients, of the parameters' shapes.
      v_block: the mean of the squares of each block, of the parameters' ranks.
    """

    steps: jax.Array
    mu: optax.Updates
    v_block: optax.Updates


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the direction m / (sqrt(v) + eps) of bias-corrected means, v one number a block."""

    def init(params: optax.Params) -> AdamMiniState:
        mu = jax.tree.map(jnp.zeros_like, params)
        return AdamMiniState(jnp.zeros((), jnp.int32), mu, _mean_squares(mu))

    def update(
        updates: optax.Updates, state: AdamMiniState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AdamMiniState]:
        count = state.steps + 1
        mu = optax.tree.update_moment(updates, state.mu, cfg.b1, 1)
        v_block = optax.tree.update_moment(_mean_squares(updates), state.v_block, cfg.b2, 1)
        means = optax.tree.bias_correction(mu, cfg.b1, count)
        squares = optax.tree.bias_correction(v_block, cfg.b2, count)
        directions = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + cfg.eps), means, squares)
        return directions, AdamMiniState(count, mu, v_block)

    return optax.GradientTransformation(init, update)


def _mean_squares(updates: optax.Updates) -> optax.Updates:
    """Averages the squares of each block; the averaged axes stay, of size 1."""

    def mean(keys: tuple, x: jax.Array, numbers: contrib.MuonDimensionNumbers) -> jax.Array:
        path = path_of(keys)
        stacked = hidden_matrices.stacked_axes(path)
        axes: tuple[int, ...]
        if TABLE.search(path):
            axes = (-1,)
        elif not path.endswith("/kernel"):
            axes = tuple(range(stacked, x.ndim))
        elif HEADS.search(path) and x.ndim - stacked == 3:
            axes = (-3, -1)
        else:
            axes = numbers.reduction_axis
        return jnp.mean(jnp.square(x), axis=axes, keepdims=True)

    numbers = hidden_matrices.dimension_numbers(updates)
    return jax.tree_util.tree_map_with_path(mean, updates, numbers)
