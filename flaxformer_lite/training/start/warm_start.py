"""A run that begins with published weights where others begin with random ones."""

import dataclasses
import operator
from collections.abc import Callable

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.pretrained.hf_config import MEANING, OURS_ONLY
from flaxformer_lite.pretrained.load import open_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def init_from_pretrained(program: Program, folder: str) -> Callable[[TrainState], TrainState]:
    """Gives the program's state before the first step the parameters of a directory that transformers reads too.

    Each device reads its own part of the files. The optimizer begins as it always does.

    Raises:
      ConfigError: no such weights, or those of another model than the config's; says which field differs.
    """
    cfg = program.cfg.model
    try:
        model, stored = open_pretrained(folder, cfg.head, scan=cfg.scan, param_dtype=cfg.param_dtype)
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"train.init_from: {error}") from None
    _same_model(folder, model.cfg, cfg)

    def begun(state: TrainState) -> TrainState:
        target, leaves = flatten_dict(program.target.params), flatten_dict(stored)
        params = {
            path: jax.make_array_from_callback(target[path].shape, target[path].sharding, leaf.read)
            for path, leaf in leaves.items()
        }
        return state.replace(params=unflatten_dict(params))

    return begun


def _same_model(folder: str, published: ModelConfig, cfg: ModelConfig) -> None:
    free = {*OURS_ONLY, "pad_token_id"}
    fields = [f.name for f in dataclasses.fields(ModelConfig) if f.name not in free]
    for field in ["family", *fields, *["max_length"] * cfg.has_position_table]:
        meaning = MEANING.get(field, operator.attrgetter(field))
        theirs, ours = meaning(published), meaning(cfg)
        if theirs != ours:
            raise ConfigError(f"train.init_from={folder}: its {field} is {theirs!r}, the config's {ours!r}; set"
                              f" --config.model.{field} to what the weights have.")  # fmt: skip
