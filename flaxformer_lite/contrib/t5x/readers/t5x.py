"""Checkpoints of T5X: a tree in msgpack with large arrays beside it as zarr folders, or Orbax's.

What arrays do not tell is read from the gin file of the run, if it is there, or has the value of
published models. A config.json in the folder, as transformers writes it, is used instead.

Reference: Roberts et al., "Scaling Up Models and Data with t5x and seqio" (2022), section 2.2.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.contrib.t5x import orbax_arrays, t5
from flaxformer_lite.contrib.t5x.arranged_tensors import Readable, check_shape
from flaxformer_lite.contrib.t5x.layers import Checkpoint, read_gin
from flaxformer_lite.contrib.t5x.zarr_arrays import open_zarr
from flaxformer_lite.files.read import Json, quote_name, quote_value, read_object
from flaxformer_lite.pretrained.flax_msgpack import read_tree
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "T5X checkpoint"
TREE = "checkpoint"  # the file that holds the tree
STATE = "state"  # the folder that Orbax writes for T5X
TARGET = "target"  # the parameters in the tree
FOLDER = re.compile(r"checkpoint_(\d+)")  # one of a run's, by its step
ARRAY_NAME = re.compile(r"\w+(/\w+)*")
DTYPES = ("float32", "bfloat16", "float16")
VERSION = "__save_format_metadata__/__version__"  # flaxformer's checkpointing.gin writes it


def find(folder: Path) -> Path | None:
    """Finds a checkpoint: the folder itself, or the newest of a run's folder; None if neither is.

    Args:
      folder: `checkpoint_1000000`, or the MODEL_DIR that holds it.
    """
    if _is_checkpoint(folder):
        return folder
    return next((step for step in _steps(folder) if _is_checkpoint(step)), None)


def _steps(folder: Path) -> list[Path]:
    """Lists the checkpoints of a run by their names, the newest first."""
    steps = {}
    if folder.is_dir():
        for child in folder.iterdir():
            if match := FOLDER.fullmatch(child.name):
                steps[int(match[1])] = child
    return [steps[number] for number in sorted(steps, reverse=True)]


def describe(place: Path) -> list[str]:
    """Describes a checkpoint in a line, and what it lacks or was assumed in others.

    Args:
      place: a folder that `find` returned.
    """
    checkpoint = _open(place)
    step = FOLDER.fullmatch(place.name)
    what = f"{place}: a checkpoint of T5X{f', step {int(step[1]):,}' if step else ''}"
    published = _published(place)
    try:
        lines = t5.describe(checkpoint, t5.read_config(checkpoint))
    except WeightsError:
        if not published:
            raise
        lines = [f"{quote_value(published['model_type'])}, by its config.json"]
    if published:
        lines = [f"{lines[0]}; config.json has the last word", *lines[1:]]
    for newer in _steps(place.absolute().parent) if step else []:
        if newer.name == place.name:
            break
        if not _is_checkpoint(newer):
            lines.append(f"{newer} is newer, but no whole checkpoint: not read")
    return [f"{what}: {lines[0]}", *lines[1:], *_tokenizer(place)]


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Args:
      place: a folder that `find` returned.

    Raises:
      WeightsError: the checkpoint is damaged, or of a model that is not read.
    """
    return t5.read_config(_open(place))


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Args:
      place: a folder that `find` returned.
      config: its config.json, or what `read_config` derives.

    Raises:
      WeightsError: the checkpoint is damaged, or holds a parameter that the model does not have.
    """
    return t5.open_weights(_open(place), config)


def _published(place: Path) -> Json:
    """Returns the config.json of transformers in the folder or above it; {} if there is none."""
    for folder in (place, place.absolute().parent):
        path = folder / "config.json"
        if path.is_file() and "model_type" in (config := read_object(path, error=WeightsError)):
            return config
    return {}


def _tokenizer(place: Path) -> list[str]:
    if (place / "spiece.model").is_file():
        return []
    return ["it has no tokenizer: copy its sentencepiece.model to spiece.model of the new folder"]


def _is_checkpoint(folder: Path) -> bool:
    """Returns whether T5X wrote this folder; TensorFlow has a text of the same name as its tree."""
    if any(folder.glob("target.*/.zarray")) or _is_orbax(folder / STATE):
        return True
    try:
        with (folder / TREE).open("rb") as file:
            return file.read(1)[:1] in [bytes([0x80 + entries]) for entries in range(1, 16)]
    except OSError:
        return False


def _is_orbax(state: Path) -> bool:
    if not orbax_arrays.is_folder(state):
        return False
    return any(path[:1] == (TARGET,) for path in orbax_arrays.tree_paths(state))


def _open(place: Path) -> Checkpoint:
    """Opens the parameters, numpy or tensorstore arrays, by their paths below `target`."""
    if _is_orbax(place / STATE):
        arrays = {}
        for keys in orbax_arrays.tree_paths(place / STATE):
            # the version is 0 in all of flaxformer
            if keys[0] == TARGET and "/".join(keys[-2:]) != VERSION:
                arrays["/".join(keys[1:])] = orbax_arrays.open_array(place / STATE, keys)
    else:
        arrays = _open_tree(place)
    return Checkpoint(place, arrays, read_gin(place))


def _open_tree(place: Path) -> dict[str, Readable]:
    path = place / TREE
    if not path.is_file():
        raise WeightsError(
            f"{path}: missing, though its arrays are there; fetch the whole folder again."
        )
    tree = read_tree(path)
    state = tree.get("optimizer", tree) if isinstance(tree, dict) else tree
    target = state.get(TARGET) if isinstance(state, dict) else None
    if not isinstance(target, dict):
        raise WeightsError(f"{path}: holds no target, the parameters of a T5X checkpoint.")
    arrays = {}
    for name, leaf in _leaves(target):
        check_name(path, name)
        if name.endswith(VERSION) and np.size(leaf) == 1 and leaf == 0:
            continue
        array = leaf
        if isinstance(leaf, dict):
            array = _open_zarr(place, name)
        elif not isinstance(leaf, np.ndarray):
            raise WeightsError(f"{path}: {name} is {quote_value(leaf)}, which is not an array.")
        check_shape(f"{path}: {name}", array)
        dtype = np.dtype(getattr(array.dtype, "numpy_dtype", array.dtype))
        if dtype.name not in DTYPES:
            raise WeightsError(
                f"{path}: {name} has dtype {dtype}; must be one of {', '.join(DTYPES)}. T5X before"
                " June 2021 wrote bfloat16 as uint16."
            )
        arrays[name] = array
    return arrays


def _leaves(tree: dict, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields arrays, and the references that stand for those beside the file."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and "driver" not in value:
            yield from _leaves(value, f"{path}/")
        else:
            yield path, value


def _open_zarr(place: Path, name: str) -> Readable:
    # The folder follows from the name; what the reference says of it is not trusted.
    if not ARRAY_NAME.fullmatch(name):
        raise WeightsError(f"{place / TREE}: {quote_name(name)} is no name of an array.")
    where = place / f"target.{name.replace('/', '.')}"
    if not (where / ".zarray").is_file():
        raise WeightsError(
            f"{where}: missing, though {TREE} names it; fetch the whole folder again."
        )
    return open_zarr({"driver": "file", "path": f"{where}/"}, str(where))
