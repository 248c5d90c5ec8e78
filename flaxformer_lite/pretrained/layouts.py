"""The place of a parameter in a published tensor: reads and writes it as reshapes and slices.

Each axis of a published tensor merges a group of axes of our parameters. Three more kinds of axis
may be in a group: FUSED, along which the file stacks several parameters of one shape; JOINED, along
which it concatenates parameters of different sizes; and EXPERT, along which it stacks the experts
of a layer.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Negative, as the axes of a parameter count from 0.
FUSED = -1
JOINED = -2
EXPERT = -3
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
    merged |= {"+": (JOINED,), "X": (EXPERT,)}
    if not inputs:
        layout = layout.replace("I", "")
    groups = []
    for letters in re.findall("[IX1]|[^IX1]+", layout):  # for each axis of the tensor
        group: tuple[int, ...] = ()
        for letter in letters:
            group += merged.get(letter, (FUSED,))
        groups.append(group)
    return tuple(groups)


def input_axes(path: str) -> int:
    """Returns the number of input axes of the kernel at this path."""
    if path.endswith("attention/out/kernel"):
        return 2
    return 1


@dataclass(frozen=True)
class Place:
    """The place of one of our parameters within the tensor `name`."""

    name: str  # name of the published tensor, without the prefix
    shape: tuple[int, ...]  # shape of our parameter
    groups: Groups  # from `groups_of`
    part: int = 0  # index of this parameter among the fused or joined ones
    parts: int = 1  # number of fused parameters
    expert: int = 0  # index of this parameter's expert, if the file stacks experts
    experts: int = 1  # number of stacked experts
    sections: tuple[int, ...] = ()  # sizes of all parameters on the JOINED axis
    repeats: int = 1  # number of times that parts of these sections alternate on that axis

    @property
    def file_shape(self) -> tuple[int, ...]:
        shape = []
        for group in self.groups:
            if JOINED in group:
                shape.append(sum(self.sections))
            else:
                shape.append(math.prod(map(self._size, group)))
        return tuple(shape)

    def read(self, read: Callable[[Slices], np.ndarray], index: Slices) -> np.ndarray:
        """Reads the slice `index` of our parameter, and little more of the file.

        If parameters alternate on an axis, all rows of the tensor are read.

        Args:
          read: function that reads a slice of the published tensor.
          index: one slice for each axis of our parameter.
        """
        if self.sections:
            return self._alone().read(self._section(read), index)
        wanted = [range(size)[s] for size, s in zip(self.shape, index, strict=True)]
        spans = []
        shape = []
        inner = []
        for group in self.groups:
            ranges = [self._chosen.get(axis) or wanted[axis] for axis in group]
            span, kept = _span(ranges, [self._size(axis) for axis in group])
            spans.append(span)
            shape += [len(k) for k in kept]
            for wanted_range, kept_range in zip(ranges, kept, strict=True):
                first = kept_range.start
                inner.append(slice(wanted_range.start - first, wanted_range.stop - first))
        block = read(tuple(spans)).reshape(shape)[tuple(inner)]
        return self._own_axes(block)

    def _own_axes(self, block: np.ndarray) -> np.ndarray:
        """Removes the axes FUSED and EXPERT, of size one here, and puts ours into their order."""
        order = list(itertools.chain(*self.groups))
        others = tuple(i for i, axis in enumerate(order) if axis < 0)
        own = [axis for axis in order if axis >= 0]
        return np.squeeze(block, others).transpose(np.argsort(own))

    def write(self, parameter: np.ndarray, tensor: np.ndarray) -> None:
        """Writes our parameter to its place in `tensor`, which has `file_shape`."""
        if self.sections:
            alone = self._alone()
            section = np.empty(alone.file_shape, tensor.dtype)
            alone.write(parameter, section)
            at = self._joined_axis
            moved = np.moveaxis(tensor, at, 0)  # a view, so that this writes to `tensor`
            rows = self._rows(np.arange(len(moved)))
            moved[rows] = np.moveaxis(section, at, 0)
            return
        order = list(itertools.chain(*self.groups))
        view = tensor.reshape([self._size(axis) for axis in order])
        chosen = self._chosen
        target: list[int | slice] = []
        for axis in order:
            if axis in chosen:
                target.append(chosen[axis].start)
            else:
                target.append(slice(None))
        view[tuple(target)] = parameter.transpose([axis for axis in order if axis >= 0])

    @property
    def _joined_axis(self) -> int:
        return next(i for i, group in enumerate(self.groups) if JOINED in group)

    def _alone(self) -> "Place":
        """Returns the place of the parameter in a tensor without the other joined ones."""
        groups = []
        for group in self.groups:
            groups.append(tuple(axis for axis in group if axis != JOINED))
        return dataclasses.replace(
            self, groups=tuple(groups), part=0, parts=1, sections=(), repeats=1
        )

    def _rows(self, all_rows: np.ndarray) -> np.ndarray:
        """Chooses the rows of this part among all rows of the joined axis."""
        before = sum(self.sections[: self.part]) // self.repeats
        rows = self.sections[self.part] // self.repeats
        return all_rows.reshape(self.repeats, -1)[:, before : before + rows].reshape(-1)

    def _section(self, read: Callable[[Slices], np.ndarray]) -> Callable[[Slices], np.ndarray]:
        """Returns a function that reads slices of this parameter as if it were not joined."""
        at = self._joined_axis
        rows = self._rows(np.arange(sum(self.sections)))

        def read_section(spans: Slices) -> np.ndarray:
            chosen = rows[spans[at]]
            first = int(chosen[0])
            around = slice(first, int(chosen[-1]) + 1)
            block = read((*spans[:at], around, *spans[at + 1 :]))
            return np.take(block, chosen - first, axis=at)

        return read_section

    @property
    def _chosen(self) -> dict[int, range]:
        """The index of this parameter on the axes FUSED and EXPERT, as a range of one."""
        return {
            FUSED: range(self.part, self.part + 1),
            EXPERT: range(self.expert, self.expert + 1),
        }

    def _size(self, axis: int) -> int:
        sizes = {FUSED: self.parts, EXPERT: self.experts}
        return sizes.get(axis) or self.shape[axis]


def _span(ranges: list[range], sizes: list[int]) -> tuple[slice, list[range]]:
    """Returns the span of a merged axis that covers `ranges`, and each axis's range within it."""
    start = 0
    stride = math.prod(sizes)
    kept = []
    for position, (wanted, size) in enumerate(zip(ranges, sizes, strict=True)):
        stride //= size
        if len(wanted) > 1 or position == len(sizes) - 1:
            stop = start + wanted.stop * stride
            kept += [wanted, *(range(n) for n in sizes[position + 1 :])]
            return slice(start + wanted.start * stride, stop), kept
        start += wanted.start * stride
        kept.append(wanted)
    return slice(0, 1), kept
