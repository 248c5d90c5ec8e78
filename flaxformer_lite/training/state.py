"""The state that training carries from step to step."""

from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.sharding.parameters import HELD, path_of
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
    """Counts the numbers in a tree of arrays or shapes.

    A matrix that is held in few bits counts its numbers, two of which may share a code, and not
    its scales.
    """
    count = 0
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        part = HELD.search(path_of(keys))
        if part is None:
            count += leaf.size
        elif part[1] == "codes":
            count += leaf.size * (2 if leaf.dtype == jnp.uint8 else 1)
    return count
