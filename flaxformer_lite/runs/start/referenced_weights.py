"""The weights that a run reads whenever it starts, and does not save with its steps.

They are the frozen base of an adapter or a freeze pattern, and an auxiliary model from a directory.
What was read first is described by digests (checkpoints/frozen_base.py), and a later start refuses
other weights.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from flaxformer_lite.checkpoints import arrays, frozen_base, workdir
from flaxformer_lite.checkpoints.digest import describe_leaves
from flaxformer_lite.checkpoints.frozen_base import Base
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError, ExperimentConfig, allowed_plugins
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.model_folder import find_run_config, fixed_address, on_disk
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.open_model import open_frozen, open_pretrained
from flaxformer_lite.pretrained.lazy_params import Stored
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


def describe(
    program: Program, state: TrainState, unchanged: Collection[str], kept: str
) -> Base | None:
    """Describes the weights of a first state that checkpoints do not hold; None if there are none.

    All processes must call this.

    Args:
      program: the program of the run.
      state: the state before the first step.
      unchanged: paths of the frozen parameters that are as `train.init_from` has them.
      kept: "reference" or "copy".
    """
    init_from = program.cfg.train.init_from
    flat = flatten_dict(state.params, sep="/")
    second = program.models.from_directory
    chosen = {}
    for path, leaf in flat.items():
        if path in unchanged or (second is not None and second.holds(path)):
            chosen[path] = leaf
    if not chosen:
        return None
    source = ""
    if unchanged:
        source = fixed_address(init_from)
    return Base(init_from, source, kept, describe_leaves(chosen))


def copy_base(program: Program, state: TrainState, checkpoints: Checkpoints) -> None:
    """Writes the frozen base into the workdir, in the form of a checkpoint."""
    flat = flatten_dict(state.params, sep="/")
    base = {path: flat[path] for path in program.frozen_base}
    step = 0
    if checkpoints.latest_step is not None:  # of a first start that was killed
        step = checkpoints.latest_step + 1
    checkpoints.save(step, {"params": unflatten_dict(base, sep="/")}, {})
    checkpoints.wait()


def complete_state(
    program: Program, state: TrainState, base: Base | None, folder: Path
) -> TrainState:
    """Returns a restored state with the weights that its checkpoint does not hold.

    Each device reads only its own part. All processes must call this.

    Args:
      program: the program of the run.
      state: the restored part.
      base: the weights that the run was trained over; None if older code began it, which did not
        describe an auxiliary model's.
      folder: the workdir.

    Raises:
      CheckpointError: the weights are others.
      ConfigError: they are not there.
    """
    auxiliary = program.models.from_directory
    if auxiliary is not None:
        read = _read_auxiliary(program)
        if base is not None:
            needed = [path for path in base.leaves if auxiliary.holds(path)]
            base.check(describe_leaves(read), auxiliary.source, needed=needed)
        state = _with_params(state, read)
    if base is None or not program.frozen_base:
        return state
    init_from = program.cfg.train.init_from
    # With a copy, too, another folder is compared before the run names it as its base.
    if base.kept == "copy" and init_from == base.init_from:
        read = _read_copy(program, folder)
        base.check(describe_leaves(read), f"{folder}/{frozen_base.FOLDER}")
    else:
        read = _read_frozen(program, base, base.place(init_from))
    return _with_params(state, read)


def add_auxiliary(program: Program, state: TrainState) -> TrainState:
    """Returns a first state with the weights of the auxiliary model's directory, if it has one."""
    if program.models.from_directory is None:
        return state
    return _with_params(state, _read_auxiliary(program))


def _with_params(state: TrainState, params: dict[str, jax.Array]) -> TrainState:
    flat = flatten_dict(state.params, sep="/")
    return state.replace(params=unflatten_dict({**flat, **params}, sep="/"))


def _read_auxiliary(program: Program) -> dict[str, jax.Array]:
    """Reads the auxiliary model of a directory, by the paths of the run's parameters."""
    auxiliary = program.models.from_directory
    assert auxiliary is not None
    model = program.cfg.model
    try:
        _, stored = open_pretrained(
            auxiliary.source,
            model.head,
            scan=model.scan,
            param_dtype=model.param_dtype,
            allow_plugins=allowed_plugins(program.cfg),
        )
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"objective.{auxiliary.name}: {error}") from None
    return _place(program, flatten_dict({auxiliary.name: stored}, sep="/"))


def _read_frozen(program: Program, base: Base, source: str) -> dict[str, jax.Array]:
    flag = "--config.train.init_from"
    try:
        stored = open_frozen(program.cfg, source, allowed_plugins(program.cfg))
    except (ConfigError, WeightsError) as error:
        raise ConfigError(
            f"train.init_from: the run's frozen weights cannot be read ({error}); put them back, or"
            f" name a folder that has them: {flag}=FOLDER."
        ) from None
    chosen = {path: stored[path] for path in program.frozen_base if path in stored}
    target = flatten_dict(program.target.params, sep="/")
    unfit = {}  # cannot be placed, and need no digest
    for path, leaf in chosen.items():
        if leaf.shape != target[path].shape:
            unfit[path] = [str(leaf.dtype), list(leaf.shape), ""]
    base.check(unfit, source, flag)
    read = _place(program, chosen)
    base.check(describe_leaves(read), source, flag, program.frozen_base)
    return read


def _read_copy(program: Program, folder: Path) -> dict[str, jax.Array]:
    target = flatten_dict(program.target.params, sep="/")
    chosen = {path: target[path] for path in program.frozen_base}
    copy = workdir.base_copy(folder)
    with workdir.tell_damaged_copy(folder):
        read = arrays.read(copy, {"params": unflatten_dict(chosen, sep="/")})
    return flatten_dict(read["params"], sep="/")


def _place(program: Program, stored: Mapping[str, Stored]) -> dict[str, jax.Array]:
    """Reads each parameter onto its devices, each device its own part."""
    target = flatten_dict(program.target.params, sep="/")
    placed: dict[str, jax.Array] = {}
    for path, leaf in stored.items():
        goal = target[path]
        read: Any = leaf.read
        placed[path] = jax.make_array_from_callback(goal.shape, goal.sharding, read)
    return placed
