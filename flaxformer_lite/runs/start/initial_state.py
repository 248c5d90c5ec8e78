"""The initial train state: random or pretrained parameters, and a fresh optimizer state."""

import jax

from flaxformer_lite.nn.functions import tuning
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.auxiliary_weights import complete_state
from flaxformer_lite.runs.start.init_per_leaf import init_per_leaf
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def initial_state(program: Program, init_from: str = "") -> TrainState:
    """Creates the initial state, with each array on its devices from the start.

    Args:
      program: has the state's shapes and shardings.
      init_from: a directory of weights; empty for random ones.

    Raises:
      ConfigError: there are no such weights, or they belong to another model.
    """
    published = warm_start.init_from_pretrained(program, init_from) if init_from else None
    once = tuning.run_once_options(MeshSharding(program.mesh, tuned=program.cfg.train.cpu_tuning))
    state = init_per_leaf(program.create, jax.tree.map(lambda x: x.sharding, program.target), once)
    return complete_state(program, published(state) if published else state)
