"""Read-only access to a training workdir: its config, and the parameters of its newest undamaged checkpoint."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import unflatten_dict

from flaxformer_lite.checkpoints.digest import describe
from flaxformer_lite.checkpoints.manager import STATE, CheckpointError, broken_leaf, hush_other_reads, read_record
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict
from flaxformer_lite.models import build_model


class Run(NamedTuple):
    """A training run.

    Attributes:
      cfg: the resolved config.
      step: the step of the checkpoint.
      model: the linen module.
      params: its parameters, numpy arrays.
      notices: one for each newer checkpoint that cannot be read.
    """

    cfg: ExperimentConfig
    step: int
    model: Any
    params: dict
    notices: list[str]


def is_workdir(folder: Path) -> bool:
    """Returns whether training wrote this folder, not save_pretrained."""
    try:
        return {"hash", "config"} == set(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read_config(folder: Path) -> ExperimentConfig:
    """Reads the run's resolved config.

    Raises:
      ConfigError: it was written by another version of the code.
    """
    stored = json.loads((folder / "config.json").read_text())["config"]
    return from_config_dict(ExperimentConfig, stored, where=f"{folder}/config.json")


def read_run(folder: Path) -> Run:
    """Reads the model and parameters of a run, without optimizer state; does not disturb a run in progress.

    Raises:
      ConfigError: config.json was written by another version of the code.
      CheckpointError: there is no checkpoint, or all are damaged.
    """
    cfg, damaged = read_config(folder), []
    steps = sorted((int(p.name) for p in (folder / "checkpoints").glob("[0-9]*") if p.name.isdigit()), reverse=True)
    for step in steps:
        try:
            params = _params(folder / "checkpoints" / str(step))
        except Exception as error:  # from tensorstore, orbax, json or the file system
            hush_other_reads()
            damaged.append(f"checkpoint of step {step} cannot be read ({str(error).strip().splitlines()[0][:200]})")
            continue
        notices = [f"{what}; step {step} is used." for what in damaged]
        return Run(cfg, step, build_model(cfg.model), params, notices)
    if damaged:
        raise CheckpointError(f"{folder}: {'; '.join(damaged)}; there is no other.")
    raise CheckpointError(
        f"{folder}/checkpoints: no checkpoint yet; the run writes one every train.checkpoint_every steps."
    )


def tokenizer_folder(folder: Path) -> Path:
    """Returns the folder where a run keeps its tokenizer.

    Raises:
      ConfigError: the folder does not exist.
    """
    if not (folder / "tokenizer").is_dir():
        raise ConfigError(f"{folder}/tokenizer: missing; the run wrote it, and text cannot be encoded without it.")
    return folder / "tokenizer"


def _params(folder: Path) -> dict:
    stored = {path: leaf for path, leaf in read_record(folder)["leaves"].items() if path.startswith("params/")}
    shapes = {path: jax.ShapeDtypeStruct(shape, dtype) for path, (dtype, shape, _) in stored.items()}
    item = unflatten_dict(shapes, sep="/")
    numpy_arrays = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
    with ocp.PyTreeCheckpointer() as reader:
        request = ocp.args.PyTreeRestore(item=item, restore_args=numpy_arrays, partial_restore=True)
        read = reader.restore((folder / STATE).absolute(), args=request)  # orbax accepts only absolute paths
    if broken := broken_leaf(stored, describe(read)):
        raise CheckpointError(f"the content of {broken} does not match its digest")
    return read["params"]
