"""Saving of published weights, in the form that both load_pretrained and transformers read."""

import json
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.weight_map import Fields, Published
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.pretrained import hf_config, resolve_path, tensor_names
from flaxformer_lite.pretrained.check_tensors import DECODER_BIAS
from flaxformer_lite.pretrained.companions import publish_tokenizer
from flaxformer_lite.pretrained.folder import read_config
from flaxformer_lite.pretrained.harmless_fields import HARMLESS
from flaxformer_lite.pretrained.safetensors import WeightsError, save_file
from flaxformer_lite.pretrained.sentences import copy_sentence_layers, write_sentence_layers
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side
from flaxformer_lite.storage.stores import is_url
from flaxformer_lite.text import tokenizer as plain

# Files copied along with the weights: tokenizers, special tokens, chat template, generation config.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.bytes",
    "spiece.model",
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
DECIDED_HERE = {
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "num_labels",
    "_name_or_path",
}


def save_pretrained(
    path: str | Path,
    model: Any,
    params: dict,
    *,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    shard_bytes: int = 5_000_000_000,
    allow_plugins: registry.Allowed = False,
) -> None:
    """Writes config.json and safetensors that transformers' AutoModel classes and `load_pretrained`
    read.

    An adapter is merged into the weights; `save_adapter` writes it alone. The directory appears, or
    replaces an earlier model's, whole or not at all; other files in it stay.

    Args:
      path: the directory, created if missing, or a gs:// or s3:// address.
      model: a linen module of a family with published weights.
      params: its parameters, scanned or not, on any mesh that is visible to this process as a
        whole.
      like: a published directory or workdir to copy the tokenizer, generation config, label names
        and token ids from; None is the directory that `model` was loaded from, if any.
      labels: names of the model's classes, in the order of its logits; `load_labels` reads them.
      shard_bytes: largest size of a file; beyond it, several files and an index are written.
      allow_plugins: as in `load_pretrained`, for `like`.

    Raises:
      ConfigError: the family's published form cannot express the model, or `path` holds something
        else, cannot be written, or is being written by another process.
      WeightsError: params do not belong to the model.
    """
    if not hasattr(model, "cfg"):
        raise ConfigError(
            f"save_pretrained of {type(model).__name__}: has no family, so transformers could not"
            " read it; save a model of build_model, or the params alone with orbax."
        )
    if not is_url(path):
        _check_kind(Path(path).expanduser())

    def stays(name: str) -> bool:
        return not fnmatch(name, "model*.safetensors*")

    def check(names: list[str]) -> None:
        _check_names(str(path), list(filter(stays, names)))

    with resolve_path.new_place(path, check=check, carry=stays) as made:
        write_pretrained(
            made,
            model,
            params,
            like=like,
            labels=labels,
            shard_bytes=shard_bytes,
            allow_plugins=allow_plugins,
        )


def write_pretrained(
    path: Path,
    model: Any,
    params: dict,
    *,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    shard_bytes: int = 5_000_000_000,
    allow_plugins: registry.Allowed = False,
) -> None:
    """Fills an empty directory; arguments and exceptions are those of `save_pretrained`."""
    family = registry.resolve("models", model.cfg.family)
    if not hasattr(family, "PUBLISHED"):
        raise ConfigError(
            f"family={model.cfg.family!r}: has no published form; keep checkpoints in our own"
            " format."
        )
    check_params(flatten_dict(params, sep="/"), parameter_shapes(model))
    model, params = merge_adapter(model, params)
    cfg = model.cfg
    flat = flatten_dict(params, sep="/")
    config = hf_config.write_config(family, cfg)
    source = like or model.source
    is_source = like is None  # which was allowed when the model was loaded from it
    like = resolve_path.on_disk(source, weights=False) if source else None
    if like and workdir.is_workdir(like):
        run = workdir.read_config(like, allow_plugins=allow_plugins or is_source)
        told = run.objective.published_fields()
        own = told.pop("labels", ())
        template = told.pop("chat_template", "")
        if pooling := told.pop("pooling", ""):
            write_sentence_layers(path, pooling=pooling, width=cfg.d_model, limit=run.data.length)
        config |= publish_tokenizer(
            plain.load(workdir.tokenizer_folder(like)), model, path, template
        )
        config |= told if cfg.num_labels == len(own or [0]) else {}
        labels = own if labels is None and cfg.num_labels == len(own) else labels
    elif like:
        config = _travel(like, path, config, {"pad_token_id", *family.PUBLISHED.all_fields})
        if cfg.head in ("none", "encoder"):
            copy_sentence_layers(like, path)
    named = hf_config.write_labels(labels, cfg) if labels is not None else {}
    (path / "config.json").write_text(json.dumps(config | named, indent=2, sort_keys=True) + "\n")
    _write(path, published_tensors(family.PUBLISHED, cfg, flat), shard_bytes)


def published_tensors(
    spelled: Published, cfg: ModelConfig, flat: dict[str, Any]
) -> dict[str, "Pieces | np.ndarray"]:
    """Maps the full name of each published tensor to its pieces, or to an array that follows from
    the config."""
    sources = by_layer(cfg, flat)
    shapes = {one: leaf.shape for one, leaf in side_by_side(cfg, flat).items()}
    tensors: dict[str, Any] = {}
    for one, place in tensor_names.places(spelled, cfg, shapes).items():
        name = tensor_names.full_name(spelled, cfg, place.name)
        tensors.setdefault(name, Pieces()).append((place, *sources[one]))
    if not cfg.tie_embeddings:  # then transformers does not tie the second name of a bias either
        tensors |= {
            name: tensors[original]
            for name, original in spelled.duplicates.items()
            if name.endswith(DECODER_BIAS) and original in tensors
        }
    dtype = next(iter(flat.values())).dtype
    for name, array in spelled.derived(cfg).items():
        tensors[tensor_names.full_name(spelled, cfg, name)] = array.astype(dtype)
    return dict(sorted(tensors.items()))


class Pieces(list):
    """The parameters in one published tensor, as (place, parameter, row in its stack or None)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self[0][0].file_shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self[0][1].dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        tensor = np.empty(self.shape, self.dtype)
        for place, leaf, row in self:
            place.write(np.asarray(leaf if row is None else leaf[row]), tensor)
        return tensor


def _check_kind(path: Path) -> None:
    """Refuses a directory that holds something else than a model."""
    if workdir.is_workdir(path):
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    _check_names(str(path), [entry.name for entry in path.iterdir()] if path.is_dir() else [])


def _check_names(path: str, names: list[str]) -> None:
    names = sorted({name.partition("/")[0] for name in names})
    if "checkpoints" in names:
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    foreign = [
        name
        for name in names
        if name not in COMPANIONS and not name.startswith((".", "README", "LICENSE"))
    ]
    if foreign and "config.json" not in names:
        raise ConfigError(
            f"{path}: holds {foreign[0]} and no config.json, so it is not a model's directory;"
            " choose a new or an empty one."
        )


def check_params(flat: dict[str, Any], shapes: dict[str, Any]) -> None:
    """Checks that these are the parameters of a model with these shapes; raises WeightsError."""
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


def _travel(like: Path, path: Path, config: dict[str, Any], ours: set[str]) -> dict[str, Any]:
    """Copies companion files; returns the config with fields of the old one that are neither
    numeric nor in `ours`."""
    for name in COMPANIONS:
        if (like / name).is_file():
            shutil.copyfile(like / name, path / name)
    old = read_config(like)
    labels_fit = len(Fields(old).get("id2label", {})) == len(config["id2label"])
    kept = HARMLESS - DECIDED_HERE - (set() if labels_fit else {"id2label", "label2id"})
    return config | {key: value for key, value in old.items() if key in kept - ours}


def _write(path: Path, tensors: dict[str, Any], shard_bytes: int) -> None:
    sizes = {
        name: int(np.prod(t.shape, dtype=np.int64)) * np.dtype(t.dtype).itemsize
        for name, t in tensors.items()
    }
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
    for file, inside in zip(files, shards, strict=True):
        entries = {
            name: (tuple(tensors[name].shape), np.dtype(tensors[name].dtype)) for name in inside
        }
        save_file(path / file, entries, (np.asarray(tensors[name]) for name in inside))
    if len(files) > 1:
        weight_map = {
            name: file for file, inside in zip(files, shards, strict=True) for name in inside
        }
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
