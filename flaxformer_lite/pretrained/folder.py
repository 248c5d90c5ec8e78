"""Reads the weight files of a published directory.

They are one safetensors file, several with an index, or Flax's old msgpack.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flax import serialization
from flax.traverse_util import flatten_dict

from flaxformer_lite.files.publish import recover
from flaxformer_lite.files.read import brief, read_bytes, read_object, shown
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name, open_file

OTHERS = {
    "pytorch_model.bin": "a pickle, which can run any code when it is opened",
    "pytorch_model.bin.index.json": (
        "an index of pickles, which can run any code when they are opened"
    ),
    "model.ckpt.index": "a TensorFlow checkpoint",
    "tf_model.h5": "Keras weights",
}


def check_exists(folder: Path) -> None:
    """Refuses what is no directory, such as a model's name on a hub."""
    if not folder.is_dir():
        raise WeightsError(
            f"{folder}: no such directory; the address of a model is gs://, s3:// or hf://ORG/NAME."
        )


def read_config(folder: Path) -> dict:
    """Reads config.json."""
    path = folder / "config.json"
    recover(folder)
    if not path.exists():
        _follow(path)
        check_exists(folder)
        if (folder / "adapter_config.json").is_file():
            raise WeightsError(
                f"{folder}: an adapter alone; pass its model's directory, with adapter= this one."
            )
        if (folder / "checkpoint").is_file() and any(folder.glob("target.*")):
            raise WeightsError(
                f"{folder}: a checkpoint of T5X, which is not read; docs/migration/t5x.md says how"
                " its weights come here."
            )
        raise WeightsError(
            f"{folder}: no config.json; pass the directory that save_pretrained wrote."
        )
    return read_object(path, error=WeightsError)


def open_weights(folder: Path) -> dict[str, Tensor]:
    """Opens all tensors of a directory by their published names; safetensors are read lazily.

    Raises:
      WeightsError: there are no weights that can be read, or a file is damaged or outside the
        directory.
    """
    if (folder / "model.safetensors").is_file():
        return open_file(folder / "model.safetensors")
    if (folder / "model.safetensors.index.json").is_file():
        return _open_shards(folder, "model.safetensors.index.json", open_file)
    if (folder / "flax_model.msgpack").is_file():
        return _named_as_torch(_msgpack(folder / "flax_model.msgpack"))
    if (folder / "flax_model.msgpack.index.json").is_file():
        return _named_as_torch(_open_shards(folder, "flax_model.msgpack.index.json", _msgpack))
    for name in ("model.safetensors", "model.safetensors.index.json", "flax_model.msgpack"):
        _follow(folder / name)
    for name, what in OTHERS.items():
        if (folder / name).is_file():
            raise WeightsError(
                f"{folder / name}: {what}, and is not read here. Convert it once where transformers"
                " and torch are installed:"
                f" AutoModel.from_pretrained({str(folder)!r}).save_pretrained(...,"
                " safe_serialization=True)."
            )
    if (folder / "checkpoint").is_file() and any(folder.glob("target.*")):
        raise WeightsError(
            f"{folder}: a checkpoint of T5X, which is not read; docs/migration/t5x.md says how its"
            " weights come here."
        )
    raise WeightsError(
        f"{folder}: no model.safetensors, model.safetensors.index.json or flax_model.msgpack."
    )


def _follow(path: Path) -> None:
    """Refuses a broken link, as in a cache that was partly deleted."""
    if path.is_symlink() and not path.exists():
        raise WeightsError(
            f"{path}: a link to {os.readlink(path)}, which is not there; fetch it again."
        )


def _open_shards(folder: Path, index_name: str, open_one: Callable[[Path], dict]) -> dict:
    path = folder / index_name
    weight_map = read_object(path, {"weight_map": dict}, error=WeightsError).get("weight_map")
    if weight_map is None or not all(isinstance(file, str) for file in weight_map.values()):
        raise WeightsError(
            f"{path}: must be a JSON object with a weight_map that gives each tensor's file."
        )
    files = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or file in ("", ".", ".."):
            raise WeightsError(
                f"{path}: names the file {brief(file)}, which is no plain name in its folder."
            )
        if not (folder / file).is_file():
            _follow(folder / file)
            raise WeightsError(f"{path}: names {file}, which is missing; fetch that part.")
        files[file] = open_one(folder / file)
    tensors = {}
    for name, file in weight_map.items():
        if name not in files[file]:
            raise WeightsError(
                f"{path}: says that {shown(name)} is in {file}, which does not hold it."
            )
        tensors[name] = files[file][name]
    for file, inside in files.items():
        if extra := sorted(
            set(inside) - {name for name, where in weight_map.items() if where == file}
        ):
            raise WeightsError(f"{path}: does not mention {extra[0]}, which {file} holds.")
    return tensors


def _msgpack(path: Path) -> dict[str, np.ndarray]:
    content = read_bytes(path, limit=sys.maxsize, error=WeightsError)
    try:
        tree = serialization.msgpack_restore(content)
    except Exception as error:  # msgpack raises many types
        why = shown(f"{type(error).__name__}: {error}")
        raise WeightsError(f"{path}: not a Flax msgpack file, or truncated ({why}).") from None
    tree = tree.get("params", tree) if isinstance(tree, dict) else tree
    if not isinstance(tree, dict):
        raise WeightsError(f"{path}: does not hold a tree of parameters.")
    flat = {"/".join(map(str, key)): leaf for key, leaf in flatten_dict(tree).items()}
    for name, leaf in flat.items():
        check_name(path, name)
        if not isinstance(leaf, np.ndarray):
            raise WeightsError(f"{path}: {name} is not an array.")
    return flat


def _named_as_torch(flat: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Renames Flax's parameters to torch's names, and transposes kernels."""
    tensors = {}
    for path, array in flat.items():
        name = re.sub(r"\.(kernel|scale|embedding)$", ".weight", path.replace("/", "."))
        tensors[name] = Tensor(array.T if path.endswith("/kernel") else array)
    return tensors
