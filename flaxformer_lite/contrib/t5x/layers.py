"""Layers of flaxformer and T5X: their parameters one layer at a time, and the gin file of a run.

Scanned stacks have an axis of layers in each array, fused kernels one of what is fused:

    encoder/encoder/mlp/wi_fused/kernel [D, L, 2, F] -> encoder/layers_0/mlp/wi_0/kernel [D, F] ...

Reference: flaxformer/architectures/t5/t5_architecture.py, moe/moe_architecture.py and
components/{dense,attention/dense_attention}.py of April 2024.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.contrib.t5x.arranged_tensors import Computed, Readable, TransposedTensor
from flaxformer_lite.files.read import quote_name, quote_value, read_text
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

GIN = ("operative_config.gin", "config.gin", "model.gin")
FUSED = {
    "wi_fused": ("wi_0", "wi_1"),
    "qkv_fused": ("query", "key", "value"),
    "kv_fused": ("key", "value"),
}
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu"}
STACKED = re.compile(r"(encoder|decoder)/\1/(?:subblock_(\d+)/)?(.+)")


class Checkpoint(NamedTuple):
    """A checkpoint of T5X.

    Attributes:
      place: its folder.
      arrays: its parameters by their paths below `target`.
      gin: the gin file of the run; "" if there is none.
    """

    place: Path
    arrays: Mapping[str, Readable]
    gin: str

    def flag(self, name: str) -> bool:
        """Returns whether the gin file sets a flag of flaxformer's modules.

        Raises:
          WeightsError: it sets the flag for some modules, and not for others.
        """
        values = set(re.findall(rf"\b{name} *= *(True|False)", self.gin))
        if len(values) > 1:
            raise WeightsError(
                f"{self.place}: its gin file sets {name} to True and to False, which is not read."
            )
        return values == {"True"}

    def number(self, name: str, default: int) -> int:
        """Returns a whole number that the gin file sets, or the default.

        Raises:
          WeightsError: it sets several numbers.
        """
        values = set(re.findall(rf"\b{name} *= *([^\s#%]+)", self.gin))
        if not values:
            return default
        if len(values) > 1 or not re.fullmatch(r"\d+(\.0*)?(e\d)?", min(values)):
            raise WeightsError(
                f"{self.place}: its gin file sets {name} to {quote_value(sorted(values))}; one"
                " whole number is read."
            )
        return int(float(min(values)))

    def refuse(self, *flags: str) -> None:
        """Refuses flags that change what modules compute."""
        for name in flags:
            if self.flag(name):
                raise WeightsError(f"{self.place}: its gin file has {name}=True: not read.")


def read_gin(place: Path) -> str:
    """Reads the gin file of the run, beside the checkpoint or in it; "" if there is none."""
    for folder in (place, place.absolute().parent):
        for name in GIN:
            if (folder / name).is_file():
                text = read_text(folder / name, error=WeightsError)
                return re.sub(r"^\s*#.*$", "", text, flags=re.M)
    return ""


def read_activation(checkpoint: Checkpoint, gated: bool) -> str:
    """Returns transformers' `feed_forward_proj`; without a gin file that of T5 1.1, or of T5 1.0.

    Raises:
      WeightsError: the activations are others, or differ between modules.
    """
    found = re.findall(r"^[\w./ ]*activations *= *[(\[]([^)\]]*)[)\]]", checkpoint.gin, re.M)
    if not found:
        return "gated-gelu" if gated else "relu"
    named = sorted({tuple(re.findall(r"['\"](\w+)['\"]", each)) for each in found})
    name, *others = named[0] or ("",)
    if len(named) > 1 or name not in ACTIVATIONS or others != ["linear"] * gated:
        raise WeightsError(
            f"{checkpoint.place}: its gin file has the activations {quote_value(named)};"
            f" {', '.join(ACTIVATIONS)} are read, {'gated by' if gated else 'without'} 'linear'."
        )
    if gated:
        return f"gated-{ACTIVATIONS[name]}"
    return "gelu_new" if name == "gelu" else ACTIVATIONS[name]


def by_layer(checkpoint: Checkpoint) -> dict[str, Readable]:
    """Returns all parameters, one layer and one kernel at a time.

    Raises:
      WeightsError: an array lacks its axis of layers, or that of fused kernels.
    """
    single: dict[str, Readable] = {}
    for path, array in checkpoint.arrays.items():
        for name, one in _layers(checkpoint, path, array):
            for full, kernel in _kernels(checkpoint, name, one):
                if full in single:
                    raise WeightsError(
                        f"{checkpoint.place}: holds {quote_name(full)} twice, in {quote_name(path)}"
                        " too."
                    )
                single[full] = kernel
    return single


def is_scanned(arrays: Mapping[str, Readable]) -> bool:
    return any(STACKED.fullmatch(path) for path in arrays)


def _layers(checkpoint: Checkpoint, path: str, array: Readable) -> Iterator[tuple[str, Readable]]:
    """Yields a parameter by its layer.

    A scan of a mixture of experts repeats a block of several layers, `subblock_0` and so on.
    """
    match = STACKED.fullmatch(path)
    if not match:
        yield path, array
        return
    side, block, rest = match.groups()
    axis, count, blocks = _stack(checkpoint, side)
    if len(array.shape) <= axis or array.shape[axis] != count:
        raise WeightsError(
            f"{checkpoint.place}: {quote_name(path)} has the shape"
            f" {quote_value(list(array.shape))}, without the {count} layers of its scanned stack on"
            f" axis {axis}."
        )
    for i in range(count):
        layer = i * blocks + int(block or 0)
        yield f"{side}/layers_{layer}/{rest}", array[(*[slice(None)] * axis, i)]


def _stack(checkpoint: Checkpoint, side: str) -> tuple[int, int, int]:
    """Returns the axis of layers in a scanned stack, its size, and the layers of its block.

    The axis is 1, the default of `scan_axis`, unless the scale of a norm shows another.
    """
    blocks = 1
    norm = None
    for path, array in checkpoint.arrays.items():
        match = STACKED.fullmatch(path)
        if match and match[1] == side:
            blocks = max(blocks, int(match[2] or 0) + 1)
            if path.endswith("norm/scale") and len(array.shape) == 2:
                norm = array
    last = checkpoint.arrays.get(f"{side}/{side}_norm/scale")
    if norm is None or last is None:
        raise WeightsError(f"{checkpoint.place}: a scanned stack without norms of two axes.")
    width = last.shape[0]
    axis = 0 if norm.shape[1] == width and norm.shape[0] != width else 1
    return axis, norm.shape[axis], blocks


def _kernels(checkpoint: Checkpoint, path: str, array: Readable) -> Iterator[tuple[str, Readable]]:
    """Yields each of the kernels that are fused in one, on its second axis."""
    owner, _, leaf = path.rpartition("/")
    above, _, name = owner.rpartition("/")
    if name not in FUSED or above.rpartition("/")[2].startswith("layers_"):
        yield path, array
        return
    names = FUSED[name]
    rank = 3 if name == "wi_fused" else 4
    if leaf != "kernel" or len(array.shape) != rank or array.shape[1] != len(names):
        raise WeightsError(
            f"{checkpoint.place}: {quote_name(path)} has the shape"
            f" {quote_value(list(array.shape))}; not a kernel of {', '.join(names)}."
        )
    for part, one in enumerate(names):
        yield f"{above}/{one}/kernel", array[:, part]


def as_torch(checkpoint: Checkpoint, path: str, array: Readable, *, scale: float = 1.0) -> Tensor:
    """Turns a kernel [in, out] to torch's [out, in]; either may be heads and their features.

    Args:
      checkpoint: for messages.
      path: of the parameter in its layer.
      array: the parameter.
      scale: a factor, of the query's kernel where its layer divides logits by a root.
    """
    axes = tuple(range(len(array.shape)))
    groups: tuple[tuple[int, ...], ...] = tuple((axis,) for axis in axes)
    if path.endswith(("/out/kernel", "/wo/kernel")):
        groups = (axes[-1:], axes[:-1])
    elif path.endswith(("/kernel", "/rel_embedding")):
        groups = (axes[1:], axes[:1])
    tensor: Tensor = TransposedTensor(array, groups, where=f"{checkpoint.place}: {path}")
    if scale != 1:
        tensor = Computed(tensor, lambda x: (x.astype("float32") * scale).astype(x.dtype))
    return tensor
