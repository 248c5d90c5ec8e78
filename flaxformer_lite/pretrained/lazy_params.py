"""Parameters that stay in their files until they are read."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from numpy.typing import DTypeLike

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.pretrained.layouts import Place, Slices
from flaxformer_lite.pretrained.safetensors import Tensor
from flaxformer_lite.pretrained.tensor_names import STACKED, layers_of

Reader = Callable[[Slices], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Stored:
    """A parameter that stays in its file until it is read."""

    shape: tuple[int, ...]  # shape of the whole parameter
    dtype: np.dtype  # dtype that `read` returns
    read: Reader  # reads the part given by one slice per axis, and nothing else

    def __getitem__(self, row: int) -> np.ndarray:
        return self.read((slice(row, row + 1), *(slice(None),) * (len(self.shape) - 1)))[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read((slice(None),) * len(self.shape))


def stored_tree(
    cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct], reader: Callable[[str], Reader]
) -> dict:
    """Builds the tree of parameters from functions that read those of single layers."""

    def one(path: str, leaf: jax.ShapeDtypeStruct) -> Stored:
        layers = [reader(layer) for layer in layers_of(cfg, path, leaf.shape)]

        def read(index: Slices) -> np.ndarray:
            if not STACKED.search(path):
                return layers[0](index).astype(leaf.dtype)
            return np.stack([layer(index[1:]).astype(leaf.dtype) for layer in layers[index[0]]])

        return Stored(leaf.shape, np.dtype(leaf.dtype), read)

    return unflatten_dict({path: one(path, leaf) for path, leaf in shapes.items()}, sep="/")


def reader_of(place: Place, tensors: dict[str, Tensor]) -> Reader:
    """Builds the function that reads a slice of a parameter from its place."""

    def read(index: Slices) -> np.ndarray:
        if place.name not in tensors:  # optional, checked before
            return np.zeros([len(range(n)[s]) for n, s in zip(place.shape, index, strict=True)])
        return place.read(tensors[place.name].read, index)

    return read
