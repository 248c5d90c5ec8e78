"""The name and layout of each parameter in a published checkpoint.

Also the names of other tensors that a checkpoint may hold.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.models.weight_map import Published, WeightRow
from flaxformer_lite.pretrained.layouts import TensorLayout, groups_of, input_axes
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError
from flaxformer_lite.types import Shaped

LAYER = re.compile(r"layer_(\d+)")
STACKED = re.compile(r"layers/block_(\d+)")
EXPERT = re.compile(r"/expert_(\d+)/")
HEAD = re.compile(r"/head_(\d+)/")
EXPERTS = "/experts/"  # in the paths of parameters with an X axis, after the axis of scan
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
VOCAB_KERNELS = ("lm_head/kernel", "masked_lm/vocab/kernel")


def layouts(
    published: Published, cfg: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorLayout]:
    """Maps each parameter's path (with layers side by side) to its layout in the file.

    Raises:
      ConfigError: a parameter has no published name.
    """
    table = _table(published, cfg)
    experts = collections.Counter(EXPERT.sub("/expert_{e}/", path) for path in shapes)
    by_path = {}
    for path, shape in shapes.items():
        layer = LAYER.search(path)
        expert = EXPERT.search(path)
        head = HEAD.search(path)
        pattern = EXPERT.sub("/expert_{e}/", LAYER.sub("layer_{i}", path))
        pattern = HEAD.sub("/head_{h}/", pattern)
        module, _, leaf = pattern.rpartition("/")
        if pattern in table:
            row, part, parts = table[pattern]
            name = row.name
        elif module in table:
            row, part, parts = table[module]
            name = f"{row.name}.{LEAVES[leaf]}"
        else:
            raise ConfigError(
                f"{path}: no published {cfg.family} has such a parameter; keep checkpoints of this"
                " model in our own format."
            )
        numbers: dict[str, int] = {}
        if layer:
            numbers |= published.index(cfg, int(layer[1]))
        if expert:
            numbers["e"] = int(expert[1])
        if head:
            numbers["h"] = int(head[1])
        if numbers:
            name = name.format(**numbers)
        layout = TensorLayout(name, shape, groups_of(row.layout, path, len(shape)), part, parts)
        if "X" in row.layout:
            count = experts[EXPERT.sub("/expert_{e}/", path)]
            layout = dataclasses.replace(layout, expert=numbers["e"], experts=count)
        if "+" in row.layout:
            layout = _joined(layout, row, path, shapes)
        by_path[path] = layout
    return by_path


def _joined(
    layout: TensorLayout, row: WeightRow, path: str, shapes: Mapping[str, tuple[int, ...]]
) -> TensorLayout:
    """Adds the sizes of the parameters that stand on one axis with this one."""
    layer = LAYER.search(path)
    leaf = path.rpartition("/")[2]
    sections = []
    heads = []
    for parameter in row.paths:
        module = parameter
        if layer is not None:
            module = parameter.replace("layer_{i}", layer[0])
        one = f"{module}/{leaf}"
        inputs = input_axes(one)
        if leaf == "bias":
            inputs = 0
        outs = shapes[one][inputs:]
        sections.append(math.prod(outs))
        heads.append(outs[0])
    repeats = 1
    if "G" in row.layout:
        repeats = min(heads)
    return dataclasses.replace(layout, sections=tuple(sections), repeats=repeats)


def layers_of(cfg: ModelConfig, path: str, shape: tuple[int, ...]) -> list[str]:
    """Returns the paths of what a parameter stacks, in order; its own path if it stacks nothing.

    Scan stacks layers, a mixture of experts stacks experts, and a norm may stack heads.
    """
    paths = [path]
    block = STACKED.search(path)
    if block:
        side = cfg
        if path.startswith("decoder/"):
            side = cfg.of_decoder
        start = int(block[1])
        paths = []
        for layer in range(start, start + shape[0] * len(side.kinds), len(side.kinds)):
            paths.append(STACKED.sub(f"layer_{layer}", path))
    heads_apart = _has_heads_apart(cfg, path)
    if EXPERTS not in path and not heads_apart:
        return paths
    numbered = []
    for one in paths:
        module, _, leaf = one.rpartition("/")
        for number in range(stack_sizes(cfg, path, shape)[-1]):
            if heads_apart:
                numbered.append(f"{module}/head_{number}/{leaf}")
            else:
                numbered.append(one.replace(EXPERTS, f"/expert_{number}/"))
    return numbered


def stack_sizes(cfg: ModelConfig, path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of the leading axes along which a parameter stacks others."""
    axes = bool(STACKED.search(path)) + (EXPERTS in path) + _has_heads_apart(cfg, path)
    return shape[:axes]


def _has_heads_apart(cfg: ModelConfig, path: str) -> bool:
    """Returns whether published files of the family have a tensor per head for a parameter."""
    family = getattr(registry.resolve("models", cfg.family), "PUBLISHED", None)
    if family is None:
        return False
    return any(path.endswith(f"/{module}/scale") for module in family.heads_apart)


Leaf = TypeVar("Leaf", bound=Shaped)
Index = tuple[int, ...]  # indices of the leading axes of a stack; () for an unstacked parameter


def by_layer(cfg: ModelConfig, flat: Mapping[str, Leaf]) -> dict[str, tuple[Leaf, Index]]:
    """Maps the paths of unstacked parameters to the parameter that holds them, and their index."""
    layers: dict[str, tuple[Any, Index]] = {}
    for path, leaf in flat.items():
        indices = np.ndindex(stack_sizes(cfg, path, leaf.shape))
        for index, one in zip(indices, layers_of(cfg, path, leaf.shape), strict=True):
            layers[one] = (leaf, index)
    return layers


def side_by_side(cfg: ModelConfig, shapes: Mapping[str, Shaped]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes that the parameters have when nothing is stacked, by path."""
    unstacked = {}
    for one, (leaf, index) in by_layer(cfg, shapes).items():
        unstacked[one] = jax.ShapeDtypeStruct(leaf.shape[len(index) :], leaf.dtype)
    return unstacked


def shapes_side_by_side(
    cfg: ModelConfig, shapes: Mapping[str, Shaped]
) -> dict[str, tuple[int, ...]]:
    """Returns `side_by_side` without the dtypes, as `layouts` takes it."""
    return {one: leaf.shape for one, leaf in side_by_side(cfg, shapes).items()}


def vocab_kernel(published: Published, cfg: ModelConfig) -> str:
    """Returns the published name of the output table; "" if the head has no logits over tokens."""
    table = _table(published, cfg)
    for path in VOCAB_KERNELS:
        module = path.rpartition("/")[0]
        if path in table:
            return table[path][0].name
        if module in table:
            return f"{table[module][0].name}.weight"
    return ""


def vocab_kernels(published: Published, cfg: ModelConfig) -> list[str]:
    """Returns the published names of the output tables of all heads."""
    rows = list(published.names(cfg))
    for head in published.heads.values():
        rows += head.rows
    names = []
    for row in rows:
        if row.ours in VOCAB_KERNELS:
            names.append(row.name)
        elif f"{row.ours}/kernel" in VOCAB_KERNELS:
            names.append(f"{row.name}.weight")
    return names


def vocab_table(published: Published, cfg: ModelConfig) -> str:
    """Returns the published name of the table that tied logits share."""
    module = "token_embed"
    if cfg.has_decoder_table:
        module = "decoder_token_embed"
    path = f"{module}/embedding"
    return layouts(published, cfg, {path: ()})[path].name


def full_name(published: Published, cfg: ModelConfig, name: str) -> str:
    """Adds the family's prefix to a name, except in the bare model and for tensors of the head."""
    head = published.heads[cfg.head]
    prefix = head.prefix
    if prefix is None:
        prefix = published.prefix
    if cfg.head == "none" or is_of_head(published, cfg, name):
        return name
    return prefix + name


def is_of_head(published: Published, cfg: ModelConfig, name: str) -> bool:
    """Returns whether a name without prefix is in the head's own rows."""
    return any(_pattern(row).fullmatch(name) for row in published.heads[cfg.head].rows)


def without_prefix(published: Published, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames tensors as in our tables: without prefix, old spelling of norms, or other names."""
    prefixes = {published.prefix, *(head.prefix or "" for head in published.heads.values())}
    stripped = {}
    for name, tensor in tensors.items():
        used = next((prefix for prefix in prefixes if prefix and name.startswith(prefix)), "")
        short = name.removeprefix(used)
        # TensorFlow's names, in files that were converted from it; transformers renames them as
        # well.
        short = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", short)
        short = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", short)
        for pattern, name_here in published.spellings.items():
            short = re.sub(pattern, name_here, short)
        if short in stripped:
            spelling = " or in two spellings" if published.spellings else ""
            raise WeightsError(
                f"the file holds {short} twice, with and without {published.prefix!r}{spelling};"
                " remove one."
            )
        stripped[short] = tensor
    return stripped


def siblings(
    published: Published, cfg: ModelConfig, names: Iterable[str], paths: Iterable[str]
) -> set[str]:
    """Returns the names in a file of other heads, or of parts that this head omits."""
    built = {path.split("/")[0] for path in paths}
    omitted = {"pooler", "lm_head"}
    if "decoder" not in built:
        omitted |= {"decoder", "decoder_embed"}
    omitted -= built
    active = {row for row, _, _ in _table(published, cfg).values()}
    every = set(published.names(cfg))
    for head in published.heads.values():
        every |= set(head.rows)
    absent = []  # patterns of names that this model does not read
    for row in every:
        if row not in active or _roots(row) <= omitted:
            absent.append(_pattern(row))
    present = [_pattern(row) for row in active if not _roots(row) <= omitted]

    def is_in(name: str, patterns: list[re.Pattern]) -> bool:
        return any(pattern.fullmatch(name) for pattern in patterns)

    # A name that several heads share is in both lists: it is read, and so no sibling.
    return {name for name in names if is_in(name, absent) and not is_in(name, present)}


def _table(published: Published, cfg: ModelConfig) -> dict[str, tuple[WeightRow, int, int]]:
    table: dict[str, Any] = {}
    for row in (*published.names(cfg), *published.heads[cfg.head].rows):
        table |= {path: (row, part, len(row.paths)) for part, path in enumerate(row.paths)}
    return table


def _roots(row: WeightRow) -> set[str]:
    return {path.split("/")[0] for path in row.paths}


def _pattern(row: WeightRow) -> re.Pattern:
    return re.compile(re.sub(r"\\\{\w\\\}", r"\\d+", re.escape(row.name)) + r"(\.(weight|bias))?")
