"""Parameters that stay in their files until they are read."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from numpy.typing import DTypeLike

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.pretrained.layouts import Slices, TensorLayout
from flaxformer_lite.pretrained.safetensors import Tensor
from flaxformer_lite.pretrained.tensor_names import Index, layers_of, stack_sizes

Reader = Callable[[Slices], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Stored:
    """A parameter that stays in its file until it is read."""

    shape: tuple[int, ...]  # shape of the whole parameter
    dtype: np.dtype  # dtype that `read` returns
    read: Reader  # reads the part given by one slice per axis, and nothing else

    def __getitem__(self, index: Index) -> np.ndarray:
        """Reads the part at an index of the leading axes."""
        first = [slice(i, i + 1) for i in index]
        rest = [slice(None)] * (len(self.shape) - len(index))
        block = self.read((*first, *rest))
        return block[(0,) * len(index)]

    def layer(self, index: Index) -> "Stored":
        """Returns the part at an index of the leading axes, unread."""
        if not index:
            return self
        first = tuple(slice(i, i + 1) for i in index)

        def read(inner: Slices) -> np.ndarray:
            return self.read((*first, *inner))[(0,) * len(index)]

        return Stored(self.shape[len(index) :], self.dtype, read)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read((slice(None),) * len(self.shape))


def in_memory(x: np.ndarray) -> Stored:
    """Returns an array in the form of a parameter in a file."""
    return Stored(x.shape, x.dtype, x.__getitem__)


def stored_tree(
    cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct], reader: Callable[[str], Reader]
) -> dict:
    """Builds a tree of stored parameters.

    Args:
      cfg: the model's config.
      shapes: the shape and dtype of each parameter by path; layers may be stacked.
      reader: returns the function that reads the parameter of one layer, given its path.
    """

    def stored(path: str, leaf: jax.ShapeDtypeStruct) -> Stored:
        readers = [reader(layer) for layer in layers_of(cfg, path, leaf.shape)]
        sizes = stack_sizes(cfg, path, leaf.shape)
        numbers = np.arange(len(readers)).reshape(sizes)

        def read(index: Slices) -> np.ndarray:
            chosen = numbers[index[: len(sizes)]]
            inner = index[len(sizes) :]
            layers = [readers[i](inner).astype(leaf.dtype) for i in chosen.reshape(-1)]
            if not sizes:
                return layers[0]
            return np.stack(layers).reshape(*chosen.shape, *layers[0].shape)

        return Stored(leaf.shape, np.dtype(leaf.dtype), read)

    return unflatten_dict({path: stored(path, leaf) for path, leaf in shapes.items()}, sep="/")


def reader_of(layout: TensorLayout, tensors: dict[str, Tensor]) -> Reader:
    """Builds the function that reads a slice of a parameter from its layout."""

    def read(index: Slices) -> np.ndarray:
        if layout.name not in tensors:  # an optional tensor; check_tensors.py refuses others
            sizes = []
            for size, part in zip(layout.shape, index, strict=True):
                sizes.append(len(range(size)[part]))
            return np.zeros(sizes)
        return layout.read(tensors[layout.name].read, index)

    return read
