"""Reads adapters that PEFT saved, for the published weights of their base."""

import collections
import dataclasses
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.config.rules import is_pattern
from flaxformer_lite.files.read import Json, is_kind, quote_name, quote_value, read_object
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.nn.adapters.dora import MAGNITUDE, DoraConfig
from flaxformer_lite.nn.adapters.ia3 import SCALE, Ia3Config
from flaxformer_lite.nn.adapters.lora import A, B, LoraConfig
from flaxformer_lite.pretrained import mlx_adapter, tensor_names
from flaxformer_lite.pretrained.adapter_layout import (
    NAMES,
    ROOT,
    Target,
    find_targets,
    shortest_endings,
)
from flaxformer_lite.pretrained.layouts import Slices
from flaxformer_lite.pretrained.lazy_params import Reader
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, open_file
from flaxformer_lite.pretrained.tensor_names import layers_of, shapes_side_by_side, side_by_side
from flaxformer_lite.pretrained.trainer_names import strip_wrappers

LOG = logging.getLogger("flaxformer_lite")
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ROWS = ".token_adapter.trainable_tokens_delta"  # behind the module whose rows are replaced
BASE_LAYER = ".base_layer."  # in the names of the base's matrices that PEFT wraps
# Fields that are read, with the kinds of their values.
KINDS: dict[str, Any] = {
    "task_type": str,
    "lora_alpha": float,
    "lora_dropout": float,
    "use_rslora": bool,
    "use_dora": bool,
    "alpha_pattern": dict,
}
HEADS = {
    "CAUSAL_LM": ("causal_lm", "lm"),
    "SEQ_2_SEQ_LM": ("lm",),
    "SEQ_CLS": ("sequence_classification",),
    "TOKEN_CLS": ("token_classification",),
    "QUESTION_ANS": ("question_answering",),
    "FEATURE_EXTRACTION": ("none",),
}
# Fields that change what is computed, with the values that do not.
FIXED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA", "IA3"),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
} | dict.fromkeys(
    (
        "lora_bias",
        "use_qalora",
        "alora_invocation_tokens",
        "layer_replication",
        "target_parameters",
        "use_bdlora",
        "arrow_config",
        "kasa_config",
        "velora_config",
        "monteclora_config",
        "megatron_config",
    ),
    (),
)
# Other fields whose meaning the tensors have, or that are about training, files and other
# libraries.
HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "feedforward_modules",
    "inference_mode",
    "init_ia3_weights",
    "init_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "trainable_token_indices",
}


@dataclasses.dataclass(frozen=True)
class PublishedAdapter:
    """An adapter in PEFT's form."""

    folder: Path  # where it is
    fields: Json  # of adapter_config.json
    # published module -> its tensors by our names of the factors
    factors: dict[str, dict[str, Tensor]]
    replaced: dict[str, Tensor]  # the base's tensors that it replaces, by their full names
    token_rows: dict[
        str, Tensor
    ]  # rows of tables that it replaces, by the full names of the tables

    def head(self, heads: Iterable[str]) -> str | None:
        """Returns the head of the family that the adapter's task needs, or None if unknown."""
        for head in HEADS.get(str(self.fields.get("task_type")), ()):
            if head in heads:
                return head
        return None

    def fit(self, published: Published, cfg: ModelConfig) -> ModelConfig:
        """Returns the config with the classes of its classifier, and without what it unties."""
        if cfg.head.endswith("classification"):
            path = "classifier/dense/kernel"
            name = tensor_names.layouts(published, cfg, {path: (1, 1)})[path].name
            if name in self.replaced:
                cfg = dataclasses.replace(cfg, num_labels=self.replaced[name].shape[0])
        if self._unties(published, cfg):
            cfg = dataclasses.replace(cfg, tie_embeddings=False)
        return cfg

    @property
    def method(self) -> type[AdapterConfig]:
        """Returns the class of our record of it."""
        return method_of(self.fields)

    def _unties(self, published: Published, cfg: ModelConfig) -> bool:
        """Returns whether it adapts the table of tied logits, and so unties it."""
        out = tensor_names.vocab_kernel(published, cfg)
        if not out or not cfg.tie_embeddings:
            return False
        return tensor_names.full_name(published, cfg, out).removesuffix(".weight") in self.factors

    def replace(
        self, published: Published, cfg: ModelConfig, tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Returns the base's tensors, with those that the adapter replaces.

        PEFT replaces a token table for the input only: the logits keep the base's table, even if
        the two are tied, unless `ensure_weight_tying` is set.
        """
        replaced = tensor_names.without_prefix(published, self.replaced)
        out = tensor_names.vocab_kernel(published, cfg)
        tied = {out: tensor_names.vocab_table(published, cfg)}
        replaced = self._drop_base_layers(replaced, tensors, tied)
        if cfg.tie_embeddings and out and not self.fields.get("ensure_weight_tying"):
            table = tensor_names.vocab_table(published, cfg)
            if table in replaced and table in tensors:
                replaced = {out: tensors[table], **replaced}
        if self._unties(published, cfg) and out not in tensors:
            replaced = {out: tensors[tensor_names.vocab_table(published, cfg)], **replaced}
        return self._with_rows(published, tensors | replaced, tied)

    def _with_rows(
        self, published: Published, tensors: dict[str, Tensor], tied: dict[str, str]
    ) -> dict[str, Tensor]:
        """Returns the tensors with the rows that `trainable_token_indices` names replaced.

        Tied logits have them too, whatever `ensure_weight_tying` says, unless they have their own.

        Raises:
          WeightsError: the rows or their table are others than the file says.
        """
        changed = dict(tensors)
        for name, rows in tensor_names.without_prefix(published, self.token_rows).items():
            numbers = self._numbers_of_token_rows(name)
            table = tensors.get(name, tensors.get(tied.get(name, "")))
            if (
                table is None
                or rows.shape != (len(numbers), *table.shape[1:])
                or not all(0 <= number < len(table.array) for number in numbers)
            ):
                raise WeightsError(
                    f"{self.folder}: trainable_token_indices does not fit {quote_name(name)}; pass"
                    " the model that it was trained for."
                )
            # The rows are float32, where the base may have half precision.
            whole = table.read().astype(np.float32)
            whole[numbers] = rows.read()
            changed[name] = Tensor(whole)
        return changed

    def _numbers_of_token_rows(self, table: str) -> list[int]:
        numbers = self.fields.get("trainable_token_indices") or []
        if isinstance(numbers, dict):
            module = table.removesuffix(".weight")
            for ending, its_numbers in numbers.items():
                if f".{module}".endswith(f".{ending}"):
                    return list(its_numbers)
            return []
        return list(numbers)

    def _drop_base_layers(
        self, replaced: dict[str, Tensor], tensors: dict[str, Tensor], tied: dict[str, str]
    ) -> dict[str, Tensor]:
        """Drops copies of the base's matrices, which PEFT saves beside their factors.

        Raises:
          WeightsError: a copy differs from the base.
        """
        kept = {}
        for name, tensor in replaced.items():
            if BASE_LAYER not in name:
                kept[name] = tensor
                continue
            original = name.replace(BASE_LAYER, ".")
            base = tensors.get(original, tensors.get(tied.get(original, "")))
            if base is None or not np.array_equal(
                np.float32(base.read()), np.float32(tensor.read())
            ):
                raise WeightsError(
                    f"{self.folder}: {name} is not {original} of the base; pass the model that it"
                    " was trained for, or merge the adapter with peft."
                )
        return kept

    def config(
        self, published: Published, cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> AdapterConfig:
        """Returns our record of it, for a model with parameters of these shapes.

        Raises:
          WeightsError: it adapts a matrix that the model does not have, or that is not adapted
            here.
        """
        known = find_targets(published, cfg, side_by_side(cfg, shapes))
        adapted = {path for path, target in known.items() if target.module in self.factors}
        unknown = sorted(set(self.factors) - {known[path].module for path in adapted})
        if unknown:
            raise WeightsError(
                f"{self.folder}: adapts {unknown[0]}, which is no matrix of this {cfg.family} with"
                f" head={cfg.head!r}; pass the model that it was trained for, and head=."
            )
        kernels = {}  # the paths of the layers of each kernel, without scan
        for path, leaf in shapes.items():
            if path.endswith("/kernel"):
                kernels[path.removesuffix("/kernel")] = layers_of(cfg, path, leaf.shape)

        def has_layer_in(modules: set[str], path: str) -> bool:
            return any(one.removesuffix("/kernel") in modules for one in kernels[path])

        chosen = [path for path in kernels if has_layer_in(adapted, path)]
        common: dict[str, Any] = {
            "targets": _patterns(chosen, kernels),
            "trained": (*LoraConfig.trained, *self._saved(published, cfg, shapes)),
        }
        if self.method is Ia3Config:
            scaled = {path for path in adapted if self._scales_inputs(known[path])}
            on_inputs = [path for path in chosen if has_layer_in(scaled, path)]
            return Ia3Config(**common, on_inputs=_patterns(on_inputs, kernels))
        if self.method is DoraConfig:
            self._check_stacks(kernels, chosen, adapted)
        scales = collections.Counter(map(self._scale, self.factors))
        rank = max(map(self._rank, self.factors))
        rslora = bool(self.fields.get("use_rslora"))
        usual_scale = scales.most_common(1)[0][0]
        alpha = usual_scale * (math.sqrt(rank) if rslora else rank)
        method = DoraConfig if self.method is DoraConfig else LoraConfig
        return method(
            **common,
            rank=rank,
            # A product of a quotient may miss the file's number by a rounding error.
            alpha=round(alpha, 6),
            rslora=rslora,
            dropout=float(self.fields.get("lora_dropout") or 0.0),
        )

    def _check_stacks(
        self, kernels: Mapping[str, list[str]], chosen: list[str], adapted: set[str]
    ) -> None:
        """Rejects DoRA in some layers of a stack; the others would need norms of their matrices."""
        for path in chosen:
            if any(one.removesuffix("/kernel") not in adapted for one in kernels[path]):
                raise WeightsError(
                    f"{self.folder}: use_dora in some layers only, of those that scan stacks; load"
                    " it with scan=False."
                )

    def _scales_inputs(self, target: Target) -> bool:
        shape = self.factors[target.module][SCALE].shape
        on_inputs = shape != target.layout(SCALE).file_shape
        if not on_inputs and target.adds_apart:
            raise WeightsError(
                f"{self.folder}: {target.module} has a bias outside of the module, which PEFT's IA3"
                " does not scale and ours does; merge the adapter with peft."
            )
        if on_inputs and target.kernel.parts > 1:
            raise WeightsError(
                f"{self.folder}: {target.module} scales the inputs of a module that holds several"
                " of our matrices, which is not supported here; merge the adapter with peft."
            )
        return on_inputs

    def _saved(
        self, published: Published, cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> list[str]:
        """Returns patterns of the parameters that the adapter replaces, to count them as trained.

        Both the path of a layer's parameter and the path of the stack that holds it are included.
        """
        names = {}
        layouts = tensor_names.layouts(published, cfg, shapes_side_by_side(cfg, shapes))
        for path, layout in layouts.items():
            names[path] = layout.name
        replaced = tensor_names.without_prefix(published, self.replaced | self.token_rows)
        saved: dict[str, None] = {}
        for path, leaf in shapes.items():
            for in_layer in layers_of(cfg, path, leaf.shape):
                if names[in_layer] in replaced and not in_layer.startswith("classifier/"):
                    saved |= dict.fromkeys((path, in_layer))
        return [rf"^{re.escape(path)}$" for path in saved]

    def readers(
        self, published: Published, cfg: ModelConfig, shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, Reader]:
        """Maps the paths of the factors of all matrices to functions that read a slice of them.

        A matrix that is not adapted, in a stack of others that are, has zeros.
        """
        readers: dict[str, Reader] = {}
        for path, target in find_targets(published, cfg, side_by_side(cfg, shapes)).items():
            for factor in self.method.factors:
                readers[f"{path}/{factor}"] = partial(self._read, factor, target, cfg.adapter)
        return readers

    def _read(self, factor: str, target: Target, adapter: Any, index: Slices) -> np.ndarray:
        """Reads a slice of a factor.

        A factor of smaller rank is padded with zeros. B takes in a scale that differs from the
        common one.
        """
        if factor not in (A, B):
            if target.module in self.factors:
                return self._whole(factor, target)[index]
            return np.ones(target.layout(factor).shape, np.float32)[index]
        padded = np.zeros(target.layout(factor, adapter.rank).shape, np.float32)
        if target.module in self.factors:
            rank = self._rank(target.module)
            part = self._whole(factor, target, rank)
            scale = self._scale(target.module)
            if factor == A:
                padded[..., :rank] = part
            elif math.isclose(scale, adapter.scale, rel_tol=1e-6):
                padded[:rank] = part
            else:
                padded[:rank] = part * (scale / adapter.scale)
        return padded[index]

    def _whole(self, factor: str, target: Target, rank: int = 0) -> np.ndarray:
        """Reads all of a factor, whose tensor must have the shape that the model implies."""
        tensor = self.factors[target.module][factor]
        layout = target.layout(factor, rank)
        if tensor.shape != layout.file_shape:
            raise WeightsError(
                f"{self.folder}: {layout.name} has shape {list(tensor.shape)}, its model and"
                f" rank imply {list(layout.file_shape)}; it is of another model."
            )
        return layout.read(tensor.read, (slice(None),) * len(layout.shape)).astype(np.float32)

    def _rank(self, module: str) -> int:
        return self.factors[module][A].shape[0]

    def _scale(self, module: str) -> float:
        rank = self._rank(module)
        alpha = self.fields.get("lora_alpha")
        alpha = 8.0 if alpha is None else float(alpha)  # PEFT's default
        for pattern, its_alpha in (self.fields.get("alpha_pattern") or {}).items():
            # PEFT's own way to match.
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = float(its_alpha)
                break
        if self.fields.get("use_rslora"):
            return alpha / math.sqrt(rank)
        return alpha / rank


def open_adapter(folder: Path) -> PublishedAdapter:
    """Opens a directory that PEFT's save_pretrained, mlx-lm or `save_adapter` wrote.

    Raises:
      ConfigError: it computes something that is not computed here.
      WeightsError: a file is missing or damaged, or holds other tensors than factors and whole
        modules.
    """
    fields = _read_file(folder, CONFIG, partial(read_object, kinds=KINDS, error=WeightsError))
    if mlx_adapter.is_of_mlx(fields):
        fields = mlx_adapter.read_fields(fields)
        tensors = _read_file(folder, mlx_adapter.WEIGHTS, mlx_adapter.open_factors)
    else:
        tensors = _read_file(folder, WEIGHTS, open_file)
    _check(fields)
    factors = collections.defaultdict[str, dict[str, Tensor]](dict)
    replaced = {}
    rows = {}
    for full, tensor in strip_wrappers(tensors, str(folder)).items():
        name = full.removeprefix(ROOT)
        ending = next((ours for ours, theirs in NAMES.items() if name.endswith(theirs)), None)
        if ending is not None:
            factors[name.removesuffix(NAMES[ending])][ending] = tensor
        elif name.endswith(ROWS):
            rows[name.removesuffix(ROWS) + ".weight"] = tensor
        elif "lora_" in name or "ia3_" in name:
            raise WeightsError(
                f"{folder}: tensor {quote_name(full)}: only the factors of dense layers are"
                " supported here."
            )
        else:
            replaced[name] = tensor
    method = method_of(fields)
    lone = [name for name, parts in factors.items() if not _complete(parts, method.factors)]
    if lone or not factors:
        first = quote_name(lone[0]) if lone else "it"
        endings = " or ".join(NAMES[one].removesuffix(".weight")[1:] for one in method.factors)
        raise WeightsError(f"{folder}: {first} lacks {endings}, or has another factor or shape.")
    return PublishedAdapter(folder, fields, dict(factors), replaced, rows)


def _read_file(folder: Path, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise WeightsError(
            f"{folder}: no {name}; pass the directory that PEFT's save_pretrained wrote."
        )
    return read(folder / name)


def method_of(fields: Json) -> type[AdapterConfig]:
    """Returns the class of our records for what adapter_config.json says."""
    if fields.get("peft_type") == "IA3":
        return Ia3Config
    if fields.get("use_dora"):
        return DoraConfig
    return LoraConfig


def _complete(parts: dict[str, Tensor], needed: tuple[str, ...]) -> bool:
    ranks = {A: 2, B: 2, MAGNITUDE: 1, SCALE: 2}
    if set(parts) != set(needed):
        return False
    for name, tensor in parts.items():
        if len(tensor.shape) != ranks[name] or not tensor.shape[0]:
            return False
    return True


def _patterns(chosen: list[str], every: Iterable[str]) -> tuple[str, ...]:
    """Returns patterns of the kernels of the chosen modules, and of no other."""
    names = shortest_endings(chosen, every, "/")
    return tuple(rf"(^|/){re.escape(name)}/kernel$" for name in names)


def _check(fields: Json) -> None:
    for name, allowed in FIXED.items():
        value = fields.get(name)
        if value and value not in allowed:
            raise ConfigError(
                f"{CONFIG}: {name}={quote_value(value)} changes the numbers, and only"
                f" {' or '.join(map(quote_value, allowed)) or 'its absence'} is supported here;"
                " merge the adapter with peft."
            )
    for pattern, alpha in (fields.get("alpha_pattern") or {}).items():
        if not is_kind(alpha, float) or is_pattern(pattern):
            raise ConfigError(
                f"{CONFIG}: alpha_pattern={quote_value({pattern: alpha})}: must map patterns to"
                " numbers."
            )
    numbers = fields.get("trainable_token_indices")
    lists = list(numbers.values()) if isinstance(numbers, dict) else [numbers or []]
    for numbers in lists:
        if not isinstance(numbers, list) or not all(is_kind(number, int) for number in numbers):
            raise ConfigError(
                f"{CONFIG}: trainable_token_indices={quote_value(numbers)}: must be a list of"
                " token numbers, or map modules to such lists."
            )
    if "peft_type" not in fields:
        raise ConfigError(f"{CONFIG}: no peft_type; must be 'LORA' or 'IA3'.")
    unread = []
    for name, value in sorted(fields.items()):
        if value and name not in {*FIXED, *KINDS, *HARMLESS}:
            unread.append(name)
    if unread:
        LOG.warning(
            "%s: %s: not known here, so ignored.", CONFIG, ", ".join(map(quote_name, unread))
        )
