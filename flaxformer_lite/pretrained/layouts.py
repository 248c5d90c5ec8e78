"""The layout of a parameter in a published tensor: reads and writes it as reshapes and slices.

Each axis of a published tensor merges a group of axes of our parameters. Three more kinds of axis
may be in a group: FUSED_AXIS, along which the file stacks several parameters of one shape;
JOINED_AXIS, along which it concatenates parameters of different sizes; and EXPERT_AXIS, along which
it stacks the experts of a layer.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Negative, as the axes of a parameter count from 0.
FUSED_AXIS = -1
JOINED_AXIS = -2
EXPERT_AXIS = -3
Groups = tuple[tuple[int, ...], ...]
Slices = tuple[slice, ...]


def groups_of(layout: str, path: str, rank: int) -> Groups:
    """Returns, for each axis of the published tensor, the axes of our parameter that it merges.

    Args:
      layout: a layout of models/weight_map.py: "I" is one axis of the tensor, the letters beside it
        another, "1" one of size 1, "X" one of experts, "+" (or "G+") an axis on which several
        parameters stand.
      path: path of our parameter; a `kernel` has input axes first, then output axes; a `bias` has
        only output axes.
      rank: rank of our parameter.
    """
    axes = tuple(range(rank))
    if not path.endswith(("/kernel", "/bias")) or path.endswith(("lm_head/kernel", "vocab/kernel")):
        return tuple((axis,) for axis in axes)
    inputs = input_axes(path)
    if path.endswith("/bias"):
        inputs = 0
    ins = axes[:inputs]
    outs = axes[inputs:]
    layout = layout.replace("G", "")
    merged = {"I": ins, "O": outs, "N": outs[:1], "H": outs[1:], "1": ()}
    merged |= {"+": (JOINED_AXIS,), "X": (EXPERT_AXIS,)}
    if not inputs:
        layout = layout.replace("I", "")
    groups = []
    for letters in re.findall("[IX1]|[^IX1]+", layout):  # for each axis of the tensor
        group: tuple[int, ...] = ()
        for letter in letters:
            group += merged.get(letter, (FUSED_AXIS,))
        groups.append(group)
    return tuple(groups)


def input_axes(path: str) -> int:
    """Returns the number of input axes of the kernel at this path."""
    if path.endswith("attention/out/kernel"):
        return 2
    return 1


@dataclass(frozen=True)
class TensorLayout:
    """Where one of our parameters lies within the tensor `name`."""

    name: str  # name of the published tensor, without the prefix
    shape: tuple[int, ...]  # shape of our parameter
    groups: Groups  # from `groups_of`
    part: int = 0  # index of this parameter among the fused or joined ones
    parts: int = 1  # number of fused parameters
    expert: int = 0  # index of this parameter's expert, if the file stacks experts
    experts: int = 1  # number of stacked experts
    sections: tuple[int, ...] = ()  # sizes of all parameters on the JOINED_AXIS axis
    repeats: int = 1  # number of times that parts of these sections alternate on that axis

    @property
    def file_shape(self) -> tuple[int, ...]:
        shape = []
        for group in self.groups:
            if JOINED_AXIS in group:
                shape.append(sum(self.sections))
            else:
                shape.append(math.prod(map(self._size, group)))
        return tuple(shape)

    def read(self, read: Callable[[Slices], np.ndarray], index: Slices) -> np.ndarray:
        """Reads the slice `index` of our parameter, and little more of the file.

        Args:
          read: function that reads a slice of the published tensor.
          index: one slice for each axis of our parameter.
        """
        positions = self._positions(index)
        block = read(tuple(map(_span, positions)))
        sizes: list[int] = []
        for axis, rows in enumerate(positions):
            if rows.size < block.shape[axis]:
                block = np.take(block, rows.reshape(-1) - rows.flat[0], axis)
            sizes += rows.shape
        return block.reshape(sizes).transpose(np.argsort(self._own_axes))

    def write(self, parameter: np.ndarray, tensor: np.ndarray) -> None:
        """Writes our parameter to its place in `tensor`, which has `file_shape`."""
        positions = self._positions((slice(None),) * parameter.ndim)
        index: list[slice | np.ndarray] = []
        for rows in positions:
            span = _span(rows)
            if rows.size == span.stop - span.start:
                index.append(span)
            else:
                index.append(rows.reshape(-1))
        block = parameter.transpose(self._own_axes)
        tensor[tuple(index)] = block.reshape([rows.size for rows in positions])

    def _positions(self, index: Slices) -> list[np.ndarray]:
        """Returns where a slice of our parameter lies on each axis of the tensor, in order.

        The positions on an axis of the tensor have an axis for each of ours that it merges.
        """
        chosen = {FUSED_AXIS: self.part, EXPERT_AXIS: self.expert, JOINED_AXIS: 0} | dict(
            enumerate(index)
        )
        positions = []
        for group, size in zip(self.groups, self.file_shape, strict=True):
            rows = np.arange(size)
            if JOINED_AXIS in group:
                first = sum(self.sections[: self.part]) // self.repeats
                count = self.sections[self.part] // self.repeats
                rows = rows.reshape(self.repeats, -1)[:, first : first + count]
            rows = rows.reshape([self._size(axis) for axis in group])
            positions.append(rows[tuple(chosen[axis] for axis in group)])
        return positions

    def _size(self, axis: int) -> int:
        sizes = {FUSED_AXIS: self.parts, EXPERT_AXIS: self.experts, JOINED_AXIS: 1}
        return sizes.get(axis) or self.shape[axis]

    @property
    def _own_axes(self) -> list[int]:
        """The axes of our parameter, in the order of the tensor."""
        return [axis for axis in itertools.chain(*self.groups) if axis >= 0]


def _span(rows: np.ndarray) -> slice:
    """Returns the slice of an axis that covers ascending positions."""
    return slice(int(rows.flat[0]), int(rows.flat[-1]) + 1)
