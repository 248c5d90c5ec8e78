"""Experts that a file stacks in one tensor, where the family's own files have a tensor for each.

transformers 5 keeps `experts.gate_up_proj` [experts, 2 outputs, inputs], the gates first, and
`experts.down_proj` [experts, outputs, inputs]; files of Qwen3-VL have both with their last axes
exchanged.
"""

from flaxformer_lite.models.weight_map import WeightRow
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

UP = ".experts.gate_up_proj"
DOWN = ".experts.down_proj"
SINGLE = ".experts.{e}.gate_proj"


def split_experts(rows: tuple[WeightRow, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with a view of each expert's matrices in place of a stack.

    Raises:
      WeightsError: a stack without its other half, or of a shape that is neither order of axes.
    """
    if not any(row.name.endswith(SINGLE) for row in rows):
        return tensors
    split = dict(tensors)
    for name in tensors:
        if not name.endswith(UP):
            continue
        layer = name.removesuffix(UP)
        ups = split.pop(name)
        downs = split.pop(f"{layer}{DOWN}", None)
        if downs is None:
            raise WeightsError(f"{name}: needs {layer}{DOWN} beside it.")
        pairs = _as_linears(name, ups, downs)
        width = pairs[0].shape[1] // 2
        for expert, (up, down) in enumerate(zip(*pairs, strict=True)):
            one = f"{layer}.experts.{expert}"
            split[f"{one}.gate_proj.weight"] = Tensor(up[:width])
            split[f"{one}.up_proj.weight"] = Tensor(up[width:])
            split[f"{one}.down_proj.weight"] = Tensor(down)
    return split


def _as_linears(name: str, ups: Tensor, downs: Tensor) -> tuple:
    """Returns both stacks as [experts, outputs, inputs]."""
    for up, down in (
        (ups.array, downs.array),
        (ups.array.swapaxes(-1, -2), downs.array.swapaxes(-1, -2)),
    ):
        if up.ndim == 3 and up.shape == (len(down), 2 * down.shape[-1], down.shape[-2]):
            return up, down
    raise WeightsError(
        f"{name} has shape {list(ups.shape)}, down_proj {list(downs.shape)}: stacked experts are"
        " [experts, 2 outputs, inputs] and [experts, inputs, outputs], or with both last axes"
        " exchanged."
    )
