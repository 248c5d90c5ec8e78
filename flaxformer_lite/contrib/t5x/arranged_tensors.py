"""Tensors made of the arrays of other programs, read when they are needed."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError


class Readable(Protocol):
    """An array of numpy or tensorstore."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any) -> Any: ...


def check_shape(where: str, array: Readable) -> None:
    """Refuses an array without entries.

    Raises:
      WeightsError: one of its sizes is 0.
    """
    if 0 in array.shape:
        raise WeightsError(f"{where} has the shape {list(array.shape)}, without entries: damaged.")


def add_tensor(tensors: dict[str, Tensor], name: str, tensor: Tensor, where: str) -> None:
    """Adds a tensor by its published name.

    Raises:
      WeightsError: there is one of this name, as of a checkpoint that holds layers in two ways.
    """
    if name in tensors:
        raise WeightsError(f"{where}: a second array for {name}; its folder holds two models.")
    tensors[name] = tensor


@dataclasses.dataclass(frozen=True)
class TransposedTensor(Tensor):
    """An array with its axes in another order, and neighbouring axes merged.

    Attributes:
      array: of numpy or tensorstore.
      groups: the axes of the array that make each axis of the tensor: ((1, 2), (0,)) turns a kernel
        [D, N, H] to [N H, D].
      index: indices of the leading axes of `array`, such as the number of a layer, which are
        applied first; slice(None) keeps an axis.
      where: the file, for messages.
    """

    array: Readable  # type: ignore[assignment]  # which is read as an array of numpy
    groups: tuple[tuple[int, ...], ...]
    index: tuple[int | slice, ...] = ()
    where: str = ""

    @property
    def kept_axes(self) -> list[int]:
        """The axes of the array that `index` leaves."""
        axes = range(len(self.array.shape))
        fixed = [axis for axis, at in enumerate(self.index) if not isinstance(at, slice)]
        return [axis for axis in axes if axis not in fixed]

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = [self.array.shape[axis] for axis in self.kept_axes]
        return tuple(math.prod(sizes[axis] for axis in group) for group in self.groups)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(getattr(self.array.dtype, "numpy_dtype", self.array.dtype))

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        index = [*self.index, *[slice(None)] * (len(self.array.shape) - len(self.index))]
        remaining = slices
        merges_axes = any(len(group) > 1 for group in self.groups)
        if slices and not merges_axes:  # only the slice is read from the file
            for (axis,), part in zip(self.groups, slices, strict=True):
                index[self.kept_axes[axis]] = part
            remaining = ()
        try:
            block = self.array[tuple(index)]
            if hasattr(block, "read"):  # a view of tensorstore
                block = block.read().result()
        except (OSError, ValueError):  # what tensorstore raises for chunks
            raise WeightsError(
                f"{self.where}: a file of the array is missing or damaged; fetch this folder again."
            ) from None
        transposed = np.transpose(block, list(itertools.chain(*self.groups)))
        if remaining or transposed.ndim != len(self.groups):
            transposed = transposed.reshape(self.shape)
        return np.ascontiguousarray(transposed[remaining])


@dataclasses.dataclass(frozen=True)
class Computed(Tensor):
    """A function of a tensor, of the same shape and dtype."""

    array: Tensor  # type: ignore[assignment]  # which is read as an array of numpy
    compute: Callable[[np.ndarray], np.ndarray]

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        return np.ascontiguousarray(self.compute(self.array.read())[slices])
