"""A run that begins with a directory's weights where others begin with random ones."""

from collections.abc import Callable

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.load import open_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.start.adopt import flags, mismatches
from flaxformer_lite.training.state import TrainState


def init_from_pretrained(program: Program, folder: str) -> Callable[[TrainState], TrainState]:
    """Gives the program's state before the first step the parameters of a directory that `load_pretrained` reads too.

    Each device reads its own part of the files. The optimizer begins as it always does.

    Raises:
      ConfigError: no such weights, or those of another model than the config's; says which fields differ.
      CheckpointError: a workdir without a whole checkpoint.
    """
    cfg = program.cfg.model
    try:
        model, stored = open_pretrained(folder, cfg.head, family=cfg.family, scan=cfg.scan, param_dtype=cfg.param_dtype)
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"train.init_from: {error}") from None
    if wrong := mismatches(model.cfg, cfg):
        listed = "; ".join(f"its {name} is {due!r}, the config's {ours!r}" for name, (due, ours) in wrong.items())
        raise ConfigError(f"train.init_from={folder}: {listed}; set {flags(model.cfg, wrong)}.")

    def begun(state: TrainState) -> TrainState:
        target, leaves = flatten_dict(program.target.params), flatten_dict(stored)
        params = {
            path: jax.make_array_from_callback(target[path].shape, target[path].sharding, leaf.read)
            for path, leaf in leaves.items()
        }
        return state.replace(params=unflatten_dict(params))

    return begun
