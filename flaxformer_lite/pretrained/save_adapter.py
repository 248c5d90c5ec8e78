"""Writes adapters in PEFT's format."""

import collections
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.nn.adapters.dora import MAGNITUDE, DoraConfig
from flaxformer_lite.nn.adapters.ia3 import SCALE, Ia3Config
from flaxformer_lite.nn.adapters.lora import A, B, LoraConfig
from flaxformer_lite.nn.adapters.merge import dequantize_params, merge_adapter
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.adapter_layout import (
    METHODS,
    NAMES,
    ROOT,
    Target,
    find_targets,
    shortest_endings,
)
from flaxformer_lite.pretrained.load_adapter import CONFIG, HEADS, WEIGHTS
from flaxformer_lite.pretrained.safetensors import save_file
from flaxformer_lite.pretrained.save import check_params, published_tensors
from flaxformer_lite.pretrained.tensor_names import Leaf, by_layer, layers_of, side_by_side
from flaxformer_lite.sharding.parameter_rules import HEADS as HEAD_MODULES
from flaxformer_lite.types import Array

Factors = dict[str, np.ndarray]  # the factors of a matrix by our names
Parts = list[tuple[Target, Factors]]  # the matrices that one published module fuses


def write_adapter(folder: Path, model: nn.Module, params: dict, *, base: str | None) -> None:
    """Fills an empty directory as `save_adapter` does.

    Args:
      folder: the directory.
      model: a linen module with an adapter, of a family with published weights.
      params: its parameters, scanned or not.
      base: the name or directory of the base model, if it is known.

    Raises:
      ConfigError: PEFT has no such method, or the model has no published form.
      WeightsError: params do not belong to the model.
    """
    weights = _published_of(model)
    model, params = dequantize_params(model, params)
    found = _find(model, weights, flatten_dict(params, sep="/"))
    tensors, ranks = _join(found.modules, model.cfg.adapter)
    config = {
        **_describe_method(model.cfg.adapter, found, ranks),
        "base_model_name_or_path": base,
        "task_type": _task(model),
        "modules_to_save": sorted(found.saved_whole) or None,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors |= found.whole_tensors
    header = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    save_file(folder / WEIGHTS, header, tensors.values())


class _Found(NamedTuple):
    """The parts of an adapter by PEFT's names.

    Attributes:
      every_module: the published modules that an adapter may change.
      modules: the matrices with factors that each published module fuses.
      saved_whole: the modules that are saved with all their weights.
      whole_tensors: the tensors of these, with factors merged.
    """

    every_module: list[str]
    modules: dict[str, Parts]
    saved_whole: set[str]
    whole_tensors: dict[str, np.ndarray]


def _published_of(model: nn.Module) -> Published:
    """Returns the published form of a model, whose adapter must be one of PEFT's."""
    adapter = model.cfg.adapter
    family = registry.resolve("models", model.cfg.family)
    if adapter is None:
        raise ConfigError("adapter: this model has none; save the weights of the model itself.")
    if type(adapter) not in METHODS:
        raise ConfigError(
            f"adapter={adapter!r}: PEFT has no form of it, and save_adapter writes"
            f" {', '.join(method.__name__ for method in METHODS)} only; use save_pretrained, which"
            " merges it."
        )
    if not hasattr(family, "PUBLISHED"):
        raise ConfigError(
            f"family={model.cfg.family!r}: has no published form; its checkpoints stay in our own"
            " format."
        )
    return family.PUBLISHED


def _find(model: nn.Module, weights: Published, flat: Mapping[str, Array]) -> _Found:
    """Finds the matrices with factors, and what is saved whole beside them."""
    cfg = model.cfg
    shapes = parameter_shapes(model)
    check_params(flat, shapes)
    known = find_targets(weights, cfg, side_by_side(cfg, shapes))
    saved_whole = _whole(model, weights, side_by_side(cfg, shapes))
    tied = _tied_tensors(weights, cfg)
    saved_whole |= {_module(name) for name, one in tied.items() if _is_in(saved_whole, one)}
    whole = set()
    for place, target in known.items():
        if _is_in(saved_whole, f"{target.module}.weight"):
            whole.add(place)
    modules = collections.defaultdict[str, Parts](list)
    for place, factors in _by_matrix(cfg, flat).items():
        if place not in whole:
            modules[known[place].module].append((known[place], factors))
    if not modules:
        raise ConfigError(
            f"adapter.targets={cfg.adapter.targets}: match only modules that PEFT saves whole, so"
            " that no factors are left; use save_pretrained, which merges the adapter."
        )
    published = published_tensors(weights, cfg, _merged_at(whole, model, flat))
    for name, original in tied.items():
        if original in published:
            published.setdefault(name, published[original])
    whole_tensors = {}
    for name, tensor in published.items():
        if _is_in(saved_whole, name):
            whole_tensors[ROOT + name] = np.asarray(tensor)
    every_module = [target.module for target in known.values()]
    return _Found(every_module, dict(modules), saved_whole, whole_tensors)


def _join(
    modules: Mapping[str, Parts], adapter: AdapterConfig
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Joins the factors of each published module; returns the tensors, and the ranks by module."""
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    for module, parts in modules.items():
        if isinstance(adapter, Ia3Config):
            joined = _join_scales(parts)
        else:
            joined = _join_matrices(parts)
        for factor, x in joined.items():
            tensors[ROOT + module + NAMES[factor]] = x
        ranks[module] = len(joined.get(A, ()))
    return tensors, ranks


def _describe_method(adapter: AdapterConfig, found: _Found, ranks: dict[str, int]) -> Json:
    """Returns the fields of adapter_config.json that say which matrices are changed, and how."""
    if isinstance(adapter, Ia3Config):
        on_inputs = []
        for module, parts in found.modules.items():
            if parts[0][0].scales_inputs:
                on_inputs.append(module)
        method = _ia3_config(list(found.modules), on_inputs, found.every_module)
    else:
        assert isinstance(adapter, LoraConfig), "of METHODS"
        method = _lora_config(adapter, ranks, found.every_module)
    targets = [target for parts in found.modules.values() for target, _ in parts]
    return method | {"fan_in_fan_out": any(target.is_transposed for target in targets)}


def _by_matrix(cfg: ModelConfig, flat: Mapping[str, Array]) -> dict[str, Factors]:
    """Maps the module of each adapted matrix, with layers side by side, to its factors."""
    by_matrix = collections.defaultdict[str, Factors](dict)
    if cfg.adapter is None:
        return by_matrix
    for path, (leaf, index) in by_layer(cfg, flat).items():
        module, _, name = path.rpartition("/")
        if name in cfg.adapter.factors:
            if index:
                leaf = leaf[index]
            by_matrix[module][name] = np.asarray(leaf)
    return by_matrix


def _join_matrices(parts: Parts) -> Factors:
    """Joins the factors of the matrices that one published module fuses into one pair.

    The distinct factors A are concatenated along the rank. Each B is written to the rows of its
    matrix, and to the columns of its A; the other entries are zero.

    Raises:
      ConfigError: DoRA adapts only some of the matrices.
    """
    distinct: list[np.ndarray] = []
    columns = []
    for _, factors in parts:
        column = 0
        while column < len(distinct) and not np.array_equal(distinct[column], factors[A]):
            column += 1
        if column == len(distinct):
            distinct.append(factors[A])
        columns.append(column)
    target, first = parts[0]
    rank = parts[0][1][B].shape[0]
    joined_a = [np.empty(target.layout(A, rank).file_shape, first[A].dtype) for _ in distinct]
    for a, out in zip(distinct, joined_a, strict=True):
        target.layout(A, rank).write(a, out)
    joined_b = [np.zeros(target.layout(B, rank).file_shape, first[B].dtype) for _ in distinct]
    for (part, factors), column in zip(parts, columns, strict=True):
        part.layout(B, rank).write(factors[B], joined_b[column])
    joined = {A: np.concatenate(joined_a), B: np.concatenate(joined_b, axis=1)}
    if MAGNITUDE not in first:
        return joined
    if len(parts) < target.kernel.parts:
        raise ConfigError(
            f"adapter.targets: {target.module} holds {target.kernel.parts} of our matrices, of"
            f" which {len(parts)} are adapted, and PEFT's DoRA adapts all; use save_pretrained,"
            " which merges the adapter."
        )
    lengths = np.empty(target.layout(MAGNITUDE).file_shape, first[MAGNITUDE].dtype)
    for part, factors in parts:
        part.layout(MAGNITUDE).write(factors[MAGNITUDE], lengths)
    return joined | {MAGNITUDE: lengths}


def _join_scales(parts: Parts) -> Factors:
    """Joins the scales of the matrices that one published module fuses, with 1 for the others."""
    target, first = parts[0]
    on_inputs = any(part.scales_inputs for part, _ in parts)
    if on_inputs and target.kernel.parts > 1:
        raise ConfigError(
            f"adapter.on_inputs: {target.module} holds several of our matrices, which share their"
            " inputs; use save_pretrained, which merges the adapter."
        )
    if not on_inputs and any(part.adds_apart for part, _ in parts):
        raise ConfigError(
            f"adapter.targets: {target.module} has a bias outside of the module, which PEFT's IA3"
            " does not scale and ours does; use save_pretrained, which merges the adapter."
        )
    joined = np.ones(target.layout(SCALE).file_shape, first[SCALE].dtype)
    for part, factors in parts:
        part.layout(SCALE).write(factors[SCALE], joined)
    return {SCALE: joined}


def _ia3_config(adapted: list[str], on_inputs: list[str], every: list[str]) -> Json:
    feed_forwards = shortest_endings(on_inputs, every, ".")
    others = shortest_endings([module for module in adapted if module not in on_inputs], every, ".")
    return {
        "peft_type": "IA3",
        "target_modules": sorted({*others, *feed_forwards}),  # PEFT asks for all of them here
        "feedforward_modules": feed_forwards,
        "inference_mode": True,
    }


def _lora_config(adapter: LoraConfig, ranks: dict[str, int], every: list[str]) -> Json:
    common = collections.Counter(ranks.values()).most_common(1)[0][0]
    others = {module: rank for module, rank in ranks.items() if rank != common}

    def alpha(rank: int) -> float:
        divisor: float = rank
        if adapter.rslora:
            divisor = math.sqrt(rank)
        # A quotient times its divisor may miss the number of the config by a rounding error.
        exact = round(adapter.scale * divisor, 6)
        if exact.is_integer():
            return int(exact)
        return exact

    return {
        "peft_type": "LORA",
        "r": common,
        "lora_alpha": alpha(common),
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rslora,
        "use_dora": isinstance(adapter, DoraConfig),
        "bias": "none",
        "target_modules": shortest_endings(ranks, every, "."),
        "rank_pattern": others,
        "alpha_pattern": {module: alpha(rank) for module, rank in others.items()},
        "inference_mode": True,
    }


def _whole(
    model: nn.Module, published: Published, shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> set[str]:
    """Returns the published modules that are trained themselves, to save in full.

    If a part of the head is trained, these include all modules that PEFT counts as the head.
    """
    cfg = model.cfg
    heads = (*HEAD_MODULES, *model.head_modules)
    sizes = {}
    for path, leaf in shapes.items():
        if not cfg.adapter.is_factor(path):
            sizes[path] = leaf.shape
    trained = set()
    of_heads = set()
    for path, layout in tensor_names.layouts(published, cfg, sizes).items():
        if cfg.adapter.trains(path):
            trained.add(layout.name)
        if path.split("/")[0] in heads and tensor_names.is_of_head(published, cfg, layout.name):
            of_heads.add(layout.name)
    if any(tensor_names.is_of_head(published, cfg, name) for name in trained):
        trained |= of_heads
    return {_module(tensor_names.full_name(published, cfg, name)) for name in trained}


def _is_in(saved_whole: set[str], name: str) -> bool:
    """Returns whether a tensor is of a module that is saved whole, or of one within it."""
    return any(name.startswith(f"{module}.") for module in saved_whole)


def _tied_tensors(published: Published, cfg: ModelConfig) -> dict[str, str]:
    """Maps tensors that are shared with others to these, such as tied logits to their table.

    PEFT shares nothing with a module that it saves whole: the others keep what the base has,
    unless they are saved, too.
    """
    if not cfg.tie_embeddings:
        return {}
    copies = {}
    for copy, original in published.duplicates.items():
        full = tensor_names.full_name(published, cfg, original)
        copies[full.removesuffix(original) + copy] = full
    logits = tensor_names.vocab_kernel(published, cfg)
    if logits:
        table = tensor_names.vocab_table(published, cfg)
        copies[tensor_names.full_name(published, cfg, logits)] = tensor_names.full_name(
            published, cfg, table
        )
    return copies


def _merged_at(whole: set[str], model: nn.Module, flat: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Returns the parameters without factors, which are merged in the modules at these places.

    PEFT drops the factors of a module that it saves whole. Of a stack all layers are merged.
    """
    kept = {}
    for path, leaf in flat.items():
        layers = layers_of(model.cfg, path, leaf.shape)
        if not model.cfg.adapter.is_factor(path) or any(
            one.rpartition("/")[0] in whole for one in layers
        ):
            kept[path] = leaf
    return flatten_dict(merge_adapter(model, unflatten_dict(kept, sep="/"))[1], sep="/")


def _module(name: str) -> str:
    """Returns the module that PEFT saves for a tensor; a classifier of several layers is one."""
    if name.startswith("classifier."):
        return "classifier"
    return name.rpartition(".")[0]


def _task(model: nn.Module) -> str | None:
    if model.cfg.head == "lm" and model.skeleton == "encoder_decoder":
        return "SEQ_2_SEQ_LM"
    for task, heads in HEADS.items():
        if model.cfg.head in heads:
            return task
    return None
