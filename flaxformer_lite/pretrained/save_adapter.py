"""Writing of LoRA adapters in the form that PEFT reads."""

import collections
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.nn.adapters.lora import A, B, LoraConfig
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.adapter_layout import NAMES, ROOT, Spot, shortest, spots
from flaxformer_lite.pretrained.load_adapter import CONFIG, HEADS, WEIGHTS
from flaxformer_lite.pretrained.safetensors import save_file
from flaxformer_lite.pretrained.save import check_params, published_tensors
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side
from flaxformer_lite.sharding.parameter_rules import HEADS as HEAD_MODULES

Factors = dict[str, np.ndarray]  # A and B


def write_adapter(folder: Path, model: Any, params: dict, *, base: str | None) -> None:
    """Fills an empty directory as `save_adapter` does.

    Args:
      folder: the directory.
      model: a linen module with a LoRA adapter, of a family with published weights.
      params: its parameters, scanned or not.
      base: the name or directory of the model that it is for, if it is known.

    Raises:
      ConfigError: the model has no LoRA adapter or no published form.
      WeightsError: params do not belong to the model.
    """
    cfg = model.cfg
    adapter = model.cfg.adapter
    family = registry.resolve("models", cfg.family)
    if not isinstance(adapter, LoraConfig) or adapter.factors != LoraConfig.factors:
        raise ConfigError(
            f"adapter={adapter!r}: save_adapter writes LoRA adapters only; use save_pretrained."
        )
    if not hasattr(family, "PUBLISHED"):
        raise ConfigError(
            f"family={cfg.family!r}: has no published form; its checkpoints stay in our own format."
        )
    flat = flatten_dict(params, sep="/")
    shapes = parameter_shapes(model)
    check_params(flat, shapes)
    known = spots(family.PUBLISHED, cfg, side_by_side(cfg, shapes))
    modules = collections.defaultdict[str, list[tuple[Spot, Factors]]](list)
    for place, factors in _by_matrix(cfg, flat).items():
        modules[known[place].module].append((known[place], factors))
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    for module, parts in modules.items():
        a, b = _joined(parts)
        tensors |= {ROOT + module + NAMES[A]: a, ROOT + module + NAMES[B]: b}
        ranks[module] = len(a)
    own = {
        name: leaf for name, leaf in flat.items() if name.rpartition("/")[2] not in adapter.factors
    }
    every = published_tensors(family.PUBLISHED, cfg, own)
    whole = _whole(model, family.PUBLISHED, side_by_side(cfg, shapes))
    tensors |= {
        ROOT + name: np.asarray(tensor) for name, tensor in every.items() if _module(name) in whole
    }
    config = _config(adapter, ranks, [spot.module for spot in known.values()]) | {
        "base_model_name_or_path": base,
        "task_type": _task(model),
        "fan_in_fan_out": any(
            spot.is_transposed for parts in modules.values() for spot, _ in parts
        ),
        "modules_to_save": sorted(whole) or None,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(
        folder / WEIGHTS, {k: (v.shape, v.dtype) for k, v in tensors.items()}, tensors.values()
    )


def _by_matrix(cfg: ModelConfig, flat: dict[str, Any]) -> dict[str, Factors]:
    """Maps the module of each adapted matrix, with layers side by side, to its factors."""
    found = collections.defaultdict[str, Factors](dict)
    for path, (leaf, row) in by_layer(cfg, flat).items():
        module, _, name = path.rpartition("/")
        if name in NAMES:
            found[module][name] = np.asarray(leaf if row is None else leaf[row])
    return found


def _joined(parts: list[tuple[Spot, Factors]]) -> tuple[np.ndarray, np.ndarray]:
    """Joins the factors of the matrices that one published module fuses: their As side by side,
    each once, and each B in its own rows and the columns of its A."""
    distinct: list[np.ndarray] = []
    columns = []
    for _, factors in parts:
        same = [i for i, a in enumerate(distinct) if np.array_equal(a, factors[A])]
        columns.append(same[0] if same else len(distinct))
        distinct += [] if same else [factors[A]]
    spot, first = parts[0]
    rank = parts[0][1][B].shape[0]
    joined_a = [np.empty(spot.place(A, rank).file_shape, first[A].dtype) for _ in distinct]
    for a, out in zip(distinct, joined_a, strict=True):
        spot.place(A, rank).write(a, out)
    joined_b = [np.zeros(spot.place(B, rank).file_shape, first[B].dtype) for _ in distinct]
    for (own, factors), column in zip(parts, columns, strict=True):
        own.place(B, rank).write(factors[B], joined_b[column])
    return np.concatenate(joined_a), np.concatenate(joined_b, axis=1)


def _config(adapter: LoraConfig, ranks: dict[str, int], every: list[str]) -> dict[str, Any]:
    common = collections.Counter(ranks.values()).most_common(1)[0][0]
    others = {module: rank for module, rank in ranks.items() if rank != common}

    def alpha(rank: int) -> float:
        exact = round(adapter.scale * (math.sqrt(rank) if adapter.rslora else rank), 6)
        return int(exact) if exact.is_integer() else exact

    return {
        "peft_type": "LORA",
        "r": common,
        "lora_alpha": alpha(common),
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rslora,
        "bias": "none",
        "target_modules": shortest(ranks, every, "."),
        "rank_pattern": others,
        "alpha_pattern": {module: alpha(rank) for module, rank in others.items()},
        "inference_mode": True,
    }


def _whole(model: Any, spelled: Published, shapes: dict[str, Any]) -> set[str]:
    """Returns the published modules to save whole: those that are trained, and with a head's all
    that PEFT counts to it."""
    cfg = model.cfg
    heads = (*HEAD_MODULES, *model.head_modules)
    own = {one: leaf.shape for one, leaf in shapes.items() if one.rpartition("/")[2] not in NAMES}
    names = {one: place.name for one, place in tensor_names.places(spelled, cfg, own).items()}
    trained = {name for one, name in names.items() if cfg.adapter.trains(one)}
    if any(tensor_names.is_of_head(spelled, cfg, name) for name in trained):
        ours = [name for one, name in names.items() if one.split("/")[0] in heads]
        trained |= {name for name in ours if tensor_names.is_of_head(spelled, cfg, name)}
    return {_module(tensor_names.full_name(spelled, cfg, name)) for name in trained}


def _module(name: str) -> str:
    """Returns the module that PEFT saves whole for a tensor; it takes a classifier of several
    layers as one."""
    return "classifier" if name.startswith("classifier.") else name.rpartition(".")[0]


def _task(model: Any) -> str | None:
    if model.cfg.head == "lm" and model.skeleton == "encoder_decoder":
        return "SEQ_2_SEQ_LM"
    return next((task for task, heads in HEADS.items() if model.cfg.head in heads), None)
