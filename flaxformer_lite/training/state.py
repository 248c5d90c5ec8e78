"""The state that training carries from step to step."""

from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.types import Params


class TrainState(flax.struct.PyTreeNode):
    """The state that a step reads and updates.

    Random keys and data positions are functions of `step`.

    Attributes:
      step: int32 scalar, the number of steps done.
      params: the parameters.
      opt_state: the optimizer's state.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def create(init_params: Callable[[], Params], tx: optax.GradientTransformation) -> TrainState:
    """Creates the state before the first step."""
    params = init_params()
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=tx.init(params))


def param_count(params: object) -> int:
    """Counts the scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
