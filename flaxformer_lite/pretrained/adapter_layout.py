"""The layout of an adapter's factors in a file of PEFT.

PEFT names a factor after the module of its matrix, and stores A as [R, inputs], B as [outputs, R],
DoRA's magnitude as [outputs] and IA3's scale as [outputs, 1] or [1, inputs], whatever the layout of
the matrix. If a file fuses several of our matrices, they share one A, and each has its own rows of
the others.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.config.parts import AdapterConfig, matches_any
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.nn.adapters.dora import MAGNITUDE, DoraConfig
from flaxformer_lite.nn.adapters.ia3 import SCALE, Ia3Config
from flaxformer_lite.nn.adapters.lora import A, B, LoraConfig
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.layouts import TensorLayout, input_axes

ROOT = "base_model.model."  # in front of the names of all tensors
NAMES = {
    A: ".lora_A.weight",
    B: ".lora_B.weight",
    MAGNITUDE: ".lora_magnitude_vector",
    SCALE: ".ia3_l",
}
# those that PEFT has
METHODS: tuple[type[AdapterConfig], ...] = (LoraConfig, DoraConfig, Ia3Config)


class Target(NamedTuple):
    """The layout of a matrix in a published file.

    Attributes:
      module: the published name of its module.
      kernel: its layout in the weight of the module.
      inputs: the number of its input axes.
      scales_inputs: whether IA3 scales what it reads, not what it gives.
      adds_apart: whether its bias is a tensor outside of the published module (DeBERTa), so that
        what PEFT makes of the module's output is made before the bias is added.
    """

    module: str
    kernel: TensorLayout
    inputs: int
    scales_inputs: bool
    adds_apart: bool

    def layout(self, factor: str, rank: int = 0) -> TensorLayout:
        """Returns the layout of a factor in its tensor; A and B are of this rank.

        The axis of IA3's scale that is not scaled has size one.
        """
        shape = self.kernel.shape
        n = self.inputs
        ins, outs = sorted(self.kernel.groups, key=lambda group: 0 not in group)
        name = self.module + NAMES.get(factor, "")
        of_outputs = dataclasses.replace(self.kernel, name=name)
        if factor == A:
            return TensorLayout(name, (*shape[:n], rank), ((n,), ins))
        if factor == B:
            groups = (_shifted(outs, 1 - n), (0,))
            return dataclasses.replace(of_outputs, shape=(rank, *shape[n:]), groups=groups)
        if factor == MAGNITUDE:
            return dataclasses.replace(of_outputs, shape=shape[n:], groups=(_shifted(outs, -n),))
        if self.scales_inputs:
            ones = (1,) * (len(shape) - n)
            alone = tuple(axis for axis in outs if axis >= 0)
            return TensorLayout(name, (*shape[:n], *ones), (alone, ins))
        return dataclasses.replace(of_outputs, shape=(*(1,) * n, *shape[n:]), groups=(outs, ins))

    @property
    def is_transposed(self) -> bool:
        """Whether the published weight is [inputs, outputs]."""
        return 0 in self.kernel.groups[0]


def _shifted(axes: Iterable[int], by: int) -> tuple[int, ...]:
    """Renumbers the axes of a parameter; negative ones are marks of layouts.py."""
    return tuple(axis if axis < 0 else axis + by for axis in axes)


def find_targets(
    published: Published, cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, Target]:
    """Maps the module of each kernel, in a model with layers side by side, to its target."""
    kernels = {path: leaf.shape for path, leaf in shapes.items() if path.endswith("/kernel")}
    sizes = {path: leaf.shape for path, leaf in shapes.items() if path.endswith("/bias")}
    biases = tensor_names.layouts(published, cfg, sizes)
    by_module = {}
    for path, layout in tensor_names.layouts(published, cfg, kernels).items():
        name = tensor_names.full_name(published, cfg, layout.name).removesuffix(".weight")
        if path.endswith(("lm_head/kernel", "vocab/kernel")):  # stored with its outputs first
            layout = TensorLayout(layout.name, layout.shape[::-1], ((1,), (0,)))
        module = path.removesuffix("/kernel")
        bias = biases.get(f"{module}/bias")
        of_module = layout.name.removesuffix(".weight")
        adds_apart = bias is not None and bias.name != f"{of_module}.bias"
        scales_inputs = isinstance(cfg.adapter, Ia3Config) and matches_any(
            cfg.adapter.on_inputs, path
        )
        by_module[module] = Target(name, layout, input_axes(path), scales_inputs, adds_apart)
    return by_module


def shortest_endings(chosen: Iterable[str], every: Iterable[str], separator: str) -> list[str]:
    """Returns the shortest endings of the chosen names that match none of the others."""
    wanted = set(chosen)
    others = {name for name in every if name not in wanted}
    for parts in range(1, 1 + max((name.count(separator) + 1 for name in wanted), default=1)):
        ends = {separator.join(name.split(separator)[-parts:]) for name in wanted}
        if not any(separator.join(name.split(separator)[-parts:]) in ends for name in others):
            return sorted(ends)
    return sorted(wanted)
