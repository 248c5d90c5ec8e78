"""Saving of published weights, in the form that both load_pretrained and transformers read."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import DTypeLike

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.models.fields import Fields
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.pretrained import hf_config, tensor_names
from flaxformer_lite.pretrained.check_tensors import DECODER_BIAS
from flaxformer_lite.pretrained.companions import publish_tokenizer
from flaxformer_lite.pretrained.folder import find_foreign, read_config
from flaxformer_lite.pretrained.harmless_fields import HARMLESS
from flaxformer_lite.pretrained.safetensors import WeightsError, save_file
from flaxformer_lite.pretrained.sentences import (
    OLD_ACTIVATION,
    SentenceLayers,
    copy_sentence_layers,
    is_cross_encoder,
    write_sentence_layers,
)
from flaxformer_lite.pretrained.tensor_names import by_layer, shapes_side_by_side
from flaxformer_lite.text import tokenizer as plain
from flaxformer_lite.text.chat_template import MORE_TEMPLATES
from flaxformer_lite.types import Array

# Files copied along with the weights: tokenizers, special tokens, chat template, generation config.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.bytes",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
# The tasks of these cut a text at data.length, and so shall who reads the published folder.
CUT_HEADS = ("sequence_classification", "token_classification")
DECIDED_HERE = {
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "num_labels",
    "_name_or_path",
}


@dataclasses.dataclass(frozen=True)
class TrainedInputs:
    """The tokenizer, labels and other facts of a training run that go into a published directory.

    Attributes:
      tokenizer: the run's tokenizer.
      length: the longest text in tokens.
      labels: names of the classes that it trained; () if it trained none.
      chat_template: of conversations; "" for none.
      sentence_layers: a sentence model's; None for other models.
      fields: further fields of config.json.
    """

    tokenizer: plain.Tokenizer
    length: int
    labels: tuple[str, ...] = ()
    chat_template: str = ""
    sentence_layers: SentenceLayers | None = None
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)


def write_pretrained(
    folder: Path,
    model: nn.Module,
    params: dict,
    *,
    like: Path | TrainedInputs | None = None,
    labels: Sequence[str] | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Fills an empty directory as `save_pretrained` does.

    Args:
      folder: the directory.
      model, params, labels, shard_bytes: as in `save_pretrained`.
      like: a directory of published weights on this machine to copy the other files from, or what
        the run that trained the model knows; None writes config.json and the weights alone.

    Raises:
      ConfigError, WeightsError: as `save_pretrained`.
    """
    published = _published(model)
    check_params(flatten_dict(params, sep="/"), parameter_shapes(model))
    model, params = merge_adapter(model, params)
    write_companions(folder, model, like=like, labels=labels)
    tensors = published_tensors(published, model.cfg, flatten_dict(params, sep="/"))
    _write(folder, tensors, shard_bytes)


def write_companions(
    folder: Path,
    model: nn.Module,
    *,
    like: Path | TrainedInputs | None = None,
    labels: Sequence[str] | None = None,
) -> None:
    """Writes everything of a published directory but the weights: config.json and the tokenizer.

    Args:
      folder: the directory.
      model: a linen module without an adapter.
      like, labels: as in `write_pretrained`.

    Raises:
      ConfigError: as `save_pretrained`.
    """
    cfg = model.cfg
    published = _published(model)
    config = hf_config.write_config(registry.resolve("models", cfg.family), cfg)
    if isinstance(like, TrainedInputs):
        config |= _write_trained(folder, model, like)
        is_classifier_of_run = cfg.num_labels == len(like.labels)
        if labels is None and is_classifier_of_run:
            labels = like.labels
    elif like is not None:
        config = _travel(like, folder, config, {"pad_token_id", *published.all_fields})
        is_scorer = cfg.head == "sequence_classification" and cfg.num_labels == 1
        if cfg.head in ("none", "encoder", "masked_lm") or (is_scorer and is_cross_encoder(like)):
            copy_sentence_layers(like, folder)
    if labels is not None:
        config |= hf_config.write_labels(labels, cfg)
    config_text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(config_text)


def _published(model: nn.Module) -> Published:
    family = registry.resolve("models", model.cfg.family)
    if not hasattr(family, "PUBLISHED"):
        raise ConfigError(
            f"family={model.cfg.family!r}: has no published form; keep checkpoints in our own"
            " format."
        )
    return family.PUBLISHED


def _write_trained(folder: Path, model: nn.Module, like: TrainedInputs) -> Json:
    """Writes the tokenizer of a run and its pooling; returns the fields for config.json."""
    cfg = model.cfg
    if like.sentence_layers:
        write_sentence_layers(folder, like.sentence_layers, width=cfg.d_model)
    limit = None
    if cfg.head in CUT_HEADS:  # as the run cut them
        limit = like.length
    fields = publish_tokenizer(like.tokenizer, model, folder, like.chat_template, limit)
    if cfg.num_labels == max(1, len(like.labels)):
        fields = fields | dict(like.fields)
    return fields


def published_tensors(
    published: Published, cfg: ModelConfig, flat: Mapping[str, Array]
) -> dict[str, "Pieces | np.ndarray"]:
    """Maps the full name of each published tensor to its pieces, or to an array.

    Arrays are tensors that follow from the config, such as tables of sines.
    """
    sources = by_layer(cfg, flat)
    tensors: dict[str, Any] = {}
    layouts = tensor_names.layouts(published, cfg, shapes_side_by_side(cfg, flat))
    for path, layout in layouts.items():
        name = tensor_names.full_name(published, cfg, layout.name)
        tensors.setdefault(name, Pieces()).append((layout, *sources[path]))
    if not cfg.tie_embeddings:  # then transformers does not tie the second name of a bias either
        for name, original in published.duplicates.items():
            if name.endswith(DECODER_BIAS) and original in tensors:
                tensors[name] = tensors[original]
    dtype = next(iter(flat.values())).dtype
    for name, array in published.derived(cfg).items():
        tensors[tensor_names.full_name(published, cfg, name)] = array.astype(dtype)
    return dict(sorted(tensors.items()))


class Pieces(list):
    """The parameters in one published tensor, as (layout, parameter, index in its stack)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self[0][0].file_shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self[0][1].dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        tensor = np.empty(self.shape, self.dtype)
        for layout, leaf, index in self:
            layout.write(np.asarray(leaf[index] if index else leaf), tensor)
        return tensor


def check_names(path: str, names: list[str]) -> None:
    """Rejects a directory that holds something other than a model, by the names of its files.

    Raises:
      ConfigError: it is a workdir, or holds other files.
    """
    names = sorted({name.partition("/")[0] for name in names})
    if "checkpoints" in names:
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    foreign = []
    for name in names:
        if name not in (*COMPANIONS, MORE_TEMPLATES) and not name.startswith(
            (".", "README", "LICENSE")
        ):
            foreign.append(name)
    if foreign and "config.json" not in names:
        raise ConfigError(
            f"{path}: holds {foreign[0]} and no config.json, so it is not a model's directory;"
            " choose a new or an empty one."
        )


def check_params(flat: Mapping[str, Array], shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Checks that these are the parameters of a model with these shapes.

    Raises:
      WeightsError: one is missing, unknown or of another shape.
    """
    for path in sorted(set(flat) ^ set(shapes)):
        what = "is not a parameter of this model" if path in flat else "is missing"
        raise WeightsError(
            f"params: {path} {what}; pass those of this model, in its layout (stack_layers and"
            " unstack_layers convert it)."
        )
    for path, leaf in flat.items():
        if leaf.shape != shapes[path].shape:
            raise WeightsError(
                f"params: {path} has shape {leaf.shape}, this model's has {shapes[path].shape}."
            )


def _travel(like: Path, path: Path, config: Json, written: set[str]) -> Json:
    """Copies companion files, and those fields of the old config that still apply.

    They are fields without a number in them that are not in `ours`.
    """
    foreign = find_foreign(like)
    if foreign and hasattr(foreign.reader, "write_tokenizer"):
        foreign.reader.write_tokenizer(foreign.folder, path)
    else:
        for name in COMPANIONS:
            if (like / name).is_file():
                shutil.copyfile(like / name, path / name)
        _rename_class(path / "tokenizer_config.json")
        for template in (like / MORE_TEMPLATES).glob("*.jinja"):
            (path / MORE_TEMPLATES).mkdir(exist_ok=True)
            shutil.copyfile(template, path / MORE_TEMPLATES / template.name)
    old = read_config(like)
    labels_fit = len(Fields(old).get("id2label", {})) == len(config["id2label"])
    kept = HARMLESS - DECIDED_HERE - written
    if not labels_fit:
        kept -= {"id2label", "label2id", "sentence_transformers", OLD_ACTIVATION}
    return config | {key: value for key, value in old.items() if key in kept}


def _rename_class(file: Path) -> None:
    """Gives the tokenizer's class its name of version 4 of transformers, which version 5 knows.

    Version 4, and what is built on it, ends at the new name.
    """
    if not file.is_file():
        return
    config = read_object(file)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write(path: Path, tensors: dict[str, Pieces | np.ndarray], shard_bytes: int) -> None:
    sizes = {}
    for name, tensor in tensors.items():
        elements = int(np.prod(tensor.shape, dtype=np.int64))
        sizes[name] = elements * np.dtype(tensor.dtype).itemsize
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards = [*shards, []]
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    weight_map = {}
    for file, inside in zip(files, shards, strict=True):
        entries = {}
        for name in inside:
            weight_map[name] = file
            entries[name] = (tuple(tensors[name].shape), np.dtype(tensors[name].dtype))
        # A generator, so that the host holds one tensor at a time and not a whole shard.
        save_file(path / file, entries, (np.asarray(tensors[name]) for name in inside))
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
