"""Saves models and adapters as published weights, in a folder or at an address."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import flax.linen as nn

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.checkpoints.resolve_path import new_place
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.model_folder import (
    check_path,
    find_run_config,
    is_address,
    is_workdir,
    on_disk,
)
from flaxformer_lite.pretrained import save, sentences
from flaxformer_lite.pretrained.save_adapter import write_adapter
from flaxformer_lite.storage import hub
from flaxformer_lite.text import tokenizer as plain


def save_pretrained(
    path: str | Path,
    model: nn.Module,
    params: dict,
    *,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    shard_bytes: int = 5_000_000_000,
    allow_plugins: registry.Allowed = False,
) -> None:
    """Writes a model as config.json and safetensors, which transformers' AutoModel classes read.

    An adapter is merged into the weights; `save_adapter` writes it alone. The files appear, or
    replace those of an earlier model, all at once or not at all; other files of the directory stay.

    Args:
      path: the directory, created if missing, or a gs://, s3:// or hf:// address.
      model: a linen module of a family with published weights.
      params: its parameters, scanned or not; this process must be able to read all of their shards.
      like: a published directory or workdir to copy the tokenizer, generation config, label names
        and token ids from; None is the directory that `model` was loaded from, if any.
      labels: the names of the classes in the order of the logits, as `load_labels` reads them.
      shard_bytes: maximum size of a file in bytes; larger weights become several files and an
        index.
      allow_plugins: as in `load_pretrained`, for `like`.

    Raises:
      ConfigError: the published format of the family cannot express the model, or `path` holds
        something other than a model, cannot be written, or is being written by another process.
      WeightsError: the parameters do not belong to the model.
    """
    if not hasattr(model, "cfg"):
        raise ConfigError(
            f"save_pretrained of {type(model).__name__}: is not a model of a family, so"
            " transformers could not read it; save a model of build_model, or save the parameters"
            " alone with orbax."
        )
    check_path(path)
    if not is_address(path):
        _check_kind(expand_home(path))

    def is_kept(name: str) -> bool:
        return not fnmatch(name, "model*.safetensors*")

    def check(names: list[str]) -> None:
        save.check_names(str(path), list(filter(is_kept, names)))

    with new_place(path, check=check, carry=is_kept) as made:
        save.write_pretrained(
            made,
            model,
            params,
            like=origin_of(model, like, allow_plugins=allow_plugins),
            labels=labels,
            shard_bytes=shard_bytes,
        )


def origin_of(
    model: nn.Module, like: str | Path | None = None, *, allow_plugins: registry.Allowed = False
) -> Path | save.TrainedInputs | None:
    """Returns the source of the tokenizer, labels and other fields for `write_pretrained`.

    Args:
      model: a linen module.
      like: a published directory or workdir; None is the directory that the model was loaded from,
        if any.
      allow_plugins: as in `load_pretrained`, for `like`; plug-ins of the directory that the model
        was loaded from have been allowed already.
    """
    source = like or model.source
    if not source:
        return None
    folder = on_disk(source, weights=False)
    run = find_run_config(folder, allow_plugins=allow_plugins or like is None)
    if run is None:
        return folder
    fields = run.objective.published_fields()
    sentence_layers = sentences.trained_layers(fields, run.data.length)
    return save.TrainedInputs(
        tokenizer=plain.load(run_inputs.tokenizer_folder(folder)),
        length=run.data.length,
        labels=tuple(fields.pop("labels", ())),
        chat_template=fields.pop("chat_template", ""),
        sentence_layers=sentence_layers,
        fields=fields,
    )


def save_adapter(
    path: str | Path, model: nn.Module, params: dict, *, base: str | None = None
) -> None:
    """Writes the adapter of a model in PEFT's format, without the weights of the model.

    The files are adapter_config.json and adapter_model.safetensors; PEFT and
    `load_pretrained(..., adapter=)` read them.

        >>> save_adapter("published/adapter", *load_pretrained("runs/tuned"))  # doctest: +SKIP

    If the published model fuses matrices, such as GPT-2's query, key and value, their factors
    become one pair whose rank is the sum of theirs. A trained classifier is written in full.

    Args:
      path: a new directory.
      model: a linen module with an adapter, of a family with published weights.
      params: its parameters, scanned or not.
      base: name or directory of the base model, for adapter_config.json; None is the directory that
        `model` was loaded from, or that its run started from.

    Raises:
      ConfigError: the model has no adapter that PEFT can express, or no published format, or the
        directory exists or cannot be written.
      WeightsError: the parameters do not belong to the model.
    """
    check_path(path)
    with new_place(path) as made:
        write_adapter(made, model, params, base=base or base_of(model.source))


def base_of(source: str) -> str | None:
    """Returns the directory that a model was loaded from, or that its run started from."""
    if source and not is_address(source) and is_workdir(Path(source)):
        source = workdir.started_from(Path(source))
    return hub.name_of(source) if hub.is_hub(source) else source or None


def _check_kind(path: Path) -> None:
    """Rejects a directory that holds something other than a model."""
    if not path.is_dir():
        return
    if is_workdir(path):
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    save.check_names(str(path), [entry.name for entry in path.iterdir()])
