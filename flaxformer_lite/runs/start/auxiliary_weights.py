"""The weights of an auxiliary model that is read from a directory.

They are checked, read whenever the run starts, and never saved.
"""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from flaxformer_lite.config import ConfigError, ExperimentConfig, allowed_plugins
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.model_folder import find_run_config, on_disk
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.runs.start.adopt import tokenizer_of
from flaxformer_lite.text import tokenizer as plain
from flaxformer_lite.training import bound_models, program as programs
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def build_program(cfg: ExperimentConfig, mesh: Mesh, example: Example) -> Program:
    """Builds the steps of an experiment, whose auxiliary model may be described in a directory.

    Args:
      cfg, mesh, example: as in `training.program.build`.

    Raises:
      ConfigError: there is no such directory, or model, mesh and rules do not fit each other.
    """
    return programs.build(cfg, mesh, example, bound_models.build(cfg, read_config(cfg)))


def read_config(cfg: ExperimentConfig) -> AuxiliaryModel | None:
    """Returns the objective's auxiliary model, with the config from its directory if it has one.

    Raises:
      ConfigError: there is no such directory, or its model does not fit the trained one.
    """
    auxiliary = cfg.objective.auxiliary_model(cfg.model)
    if auxiliary is None or not auxiliary.source:
        return auxiliary
    try:
        path = on_disk(auxiliary.source)
        run = find_run_config(path, allow_plugins=allowed_plugins(cfg))
        if run:
            model = dataclasses.replace(run.model, head=cfg.model.head)
        else:
            model = open_pretrained(path, cfg.model.head)[0].cfg
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"objective.{auxiliary.name}: {error}") from None
    return bound_models.fitted(auxiliary, model, cfg)


def check_tokenizer(program: Program, tokenizer: plain.Tokenizer) -> None:
    """Checks that the auxiliary model has the run's tokenizer: its ids would mean other tokens.

    Raises:
      ConfigError: it has another; names the way out.
    """
    auxiliary = program.models.from_directory
    if auxiliary is None:
        return
    path = tokenizer_of(auxiliary.source, f"objective.{auxiliary.name}")
    theirs = open_tokenizer(path, frame=program.cfg.data.tokenizer.frame)
    if (theirs.pieces(), theirs.specials()) != (tokenizer.pieces(), tokenizer.specials()):
        raise ConfigError(
            f"objective.{auxiliary.name}={auxiliary.source}: its tokenizer is not the run's, so an"
            f" id means another token; set data.tokenizer.path={path}."
        )


def hash_weights(program: Program) -> str:
    """Hashes an auxiliary model's published weights, so that a resumed run refuses others.

    Returns "" if there are none.
    """
    auxiliary = program.models.from_directory
    if auxiliary is None:
        return ""
    sha = hashlib.sha256()
    for path, leaf in sorted(flatten_dict(_open(program.cfg, auxiliary), sep="/").items()):
        sha.update(path.encode() + np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()[:16]


def complete_state(program: Program, state: TrainState) -> TrainState:
    """Returns the state with the weights that a checkpoint does not hold.

    Each device reads only its own part.
    """
    auxiliary = program.models.from_directory
    if auxiliary is None:
        return state

    def read(leaf: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.make_array_from_callback(target.shape, target.sharding, leaf.read)

    targets = program.target.params[auxiliary.name]
    params = jax.tree.map(read, _open(program.cfg, auxiliary), targets)
    return state.replace(params={**state.params, auxiliary.name: params})


def _open(cfg: ExperimentConfig, auxiliary: AuxiliaryModel) -> dict:
    model = cfg.model
    try:
        return open_pretrained(
            auxiliary.source,
            model.head,
            scan=model.scan,
            param_dtype=model.param_dtype,
            allow_plugins=allowed_plugins(cfg),
        )[1]
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"objective.{auxiliary.name}: {error}") from None
