"""The initial train state: random or pretrained parameters, and a fresh optimizer state."""

import jax

from flaxformer_lite.runs.experiment import FirstState
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.init_per_leaf import init_per_leaf
from flaxformer_lite.runs.start.referenced_weights import add_auxiliary
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def initial_state(program: Program, init_from: str = "") -> TrainState:
    """Creates the initial state, as `first_state` does."""
    return first_state(program, init_from).state


def first_state(program: Program, init_from: str = "") -> FirstState:
    """Creates the initial state, with each array on its devices from the start.

    Args:
      program: has the state's shapes and shardings.
      init_from: a directory of weights; empty for random ones.

    Raises:
      ConfigError: there are no such weights, or they belong to another model.
    """
    published = None
    omitted = set[int]()
    if init_from:
        published = warm_start.init_from_pretrained(program, init_from)
        for number, (keys, _) in enumerate(jax.tree_util.tree_leaves_with_path(program.target)):
            if path_of(keys).removeprefix("params/") in published.paths:
                omitted.add(number)
    shardings = jax.tree.map(lambda x: x.sharding, program.target)
    state = init_per_leaf(program.create, shardings, omitted)
    unchanged = frozenset[str]()
    if published:
        state = published.replace_params(state)
        unchanged = published.unchanged
    return FirstState(add_auxiliary(program, state), unchanged)
