"""Flax's msgpack files: of Hugging Face's Flax models, and of trees in general."""

import re
import sys
from pathlib import Path

import numpy as np
from flax import serialization
from flax.traverse_util import flatten_dict

from flaxformer_lite.files.read import quote_name, read_bytes
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name


def read_tree(path: Path) -> object:
    """Reads the tree that `flax.serialization` wrote.

    Raises:
      WeightsError: the file is of another kind, or truncated.
    """
    # Without a bound, unlike JSON: weights are as large as their model.
    content = read_bytes(path, limit=sys.maxsize, error=WeightsError)
    try:
        return serialization.msgpack_restore(content)
    except Exception as error:  # msgpack raises many types
        why = quote_name(f"{type(error).__name__}: {error}")
        raise WeightsError(f"{path}: not a Flax msgpack file, or truncated ({why}).") from None


def open_file(path: Path) -> dict[str, np.ndarray]:
    """Reads the parameters of a file by their paths.

    Raises:
      WeightsError: the file is damaged, or holds something other than arrays.
    """
    tree = read_tree(path)
    tree = tree.get("params", tree) if isinstance(tree, dict) else tree
    if not isinstance(tree, dict):
        raise WeightsError(f"{path}: does not hold a tree of parameters.")
    flat = {"/".join(map(str, key)): leaf for key, leaf in flatten_dict(tree).items()}
    for name, leaf in flat.items():
        check_name(path, name)
        if not isinstance(leaf, np.ndarray):
            raise WeightsError(f"{path}: {name} is not an array.")
    return flat


def named_as_torch(flat: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Renames Flax's parameters to torch's names, and transposes kernels."""
    tensors = {}
    for path, array in flat.items():
        name = re.sub(r"\.(kernel|scale|embedding)$", ".weight", path.replace("/", "."))
        tensors[name] = Tensor(array.T if path.endswith("/kernel") else array)
    return tensors
