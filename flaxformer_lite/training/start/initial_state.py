"""The one maker of a new state: random parameters or published ones, and an optimizer that has seen nothing."""

import jax

from flaxformer_lite.functions import cpu_tuning
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.start import init_per_leaf, warm_start
from flaxformer_lite.training.state import TrainState


def initial_state(program: Program, init_from: str = "") -> TrainState:
    """The state before the first step, each array on its devices from the start.

    Args:
      program: says what the state is made of, and where it lies.
      init_from: a directory of published weights; empty: random ones.

    Raises:
      ConfigError: no such weights, or those of another model.
    """
    published = warm_start.init_from_pretrained(program, init_from) if init_from else None
    once = cpu_tuning.run_once_options(MeshSharding(program.mesh, tuned=program.cfg.train.cpu_tuning))
    state = init_per_leaf.init_per_leaf(program.create, jax.tree.map(lambda x: x.sharding, program.target), once)()
    return published(state) if published else state
