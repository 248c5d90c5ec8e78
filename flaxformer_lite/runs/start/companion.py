"""The weights of a companion that is read from a directory.

They are checked, read whenever the run starts, and never saved.
"""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, ExperimentConfig, allowed_plugins
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.objectives.companion import Companion
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.runs.start.adopt import tokenizer_of
from flaxformer_lite.text import tokenizer as plain
from flaxformer_lite.training import bound_models
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def resolve(cfg: ExperimentConfig) -> Companion | None:
    """Returns the objective's companion, with the config that lies in its directory if it has one.

    Raises:
      ConfigError: there is no such directory, or its model does not fit the trained one.
    """
    companion = cfg.objective.companion(cfg.model)
    if companion is None or not companion.source:
        return companion
    try:
        path = on_disk(companion.source)
        if workdir.is_workdir(path):
            run = workdir.read_config(path, allow_plugins=allowed_plugins(cfg))
            model = dataclasses.replace(run.model, head=cfg.model.head)
        else:
            model = open_pretrained(path, cfg.model.head)[0].cfg
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"objective.{companion.name}: {error}") from None
    return bound_models.fitted(companion, model, cfg)


def check_tokenizer(program: Program, tokenizer: plain.Tokenizer) -> None:
    """Checks that the companion has the run's tokenizer: its ids would mean other tokens.

    Raises:
      ConfigError: it has another; names the way out.
    """
    companion = program.companion
    if companion is None or not companion.source:
        return
    path = tokenizer_of(companion.source, f"objective.{companion.name}")
    theirs = open_tokenizer(path)
    if (theirs.pieces(), theirs.specials()) != (tokenizer.pieces(), tokenizer.specials()):
        raise ConfigError(
            f"objective.{companion.name}={companion.source}: its tokenizer is not the run's, so an"
            f" id means another token; set data.tokenizer.path={path}."
        )


def digest(program: Program) -> str:
    """Hashes a companion's published weights, so that a resumed run refuses others.

    Returns "" if there are none.
    """
    companion = program.companion
    if companion is None or not companion.source:
        return ""
    sha = hashlib.sha256()
    for path, leaf in sorted(flatten_dict(_open(program.cfg, companion), sep="/").items()):
        sha.update(path.encode() + np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()[:16]


def complete(program: Program, state: TrainState) -> TrainState:
    """Returns the state with the weights that a checkpoint does not hold.

    Each device reads only its own part.
    """
    companion = program.companion
    if companion is None or not companion.source:
        return state

    def read(leaf: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.make_array_from_callback(target.shape, target.sharding, leaf.read)

    params = jax.tree.map(
        read, _open(program.cfg, companion), program.target.params[companion.name]
    )
    return state.replace(params={**state.params, companion.name: params})


def _open(cfg: ExperimentConfig, companion: Companion) -> dict:
    model = cfg.model
    try:
        return open_pretrained(
            companion.source,
            model.head,
            scan=model.scan,
            param_dtype=model.param_dtype,
            allow_plugins=allowed_plugins(cfg),
        )[1]
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"objective.{companion.name}: {error}") from None
