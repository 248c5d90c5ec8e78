"""Loads and saves models: published weights, workdirs of runs, addresses in stores or on the Hub.

This is the only file that tells them apart; those of lower layers take a local folder. Code
for stores and workdirs is imported only when it is needed.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax.linen as nn
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from flaxformer_lite import first_model, registry
from flaxformer_lite.config import ConfigError, OneOf, choices
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.config.rules import raise_if_invalid
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.nn.adapters.merge import with_initial_factors
from flaxformer_lite.pretrained import load
from flaxformer_lite.pretrained.lazy_params import stored_tree
from flaxformer_lite.pretrained.place_params import place
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side
from flaxformer_lite.storage import hub
from flaxformer_lite.storage.stores import is_url

if TYPE_CHECKING:
    from flaxformer_lite.checkpoints.workdir import Run
    from flaxformer_lite.pretrained.save import TrainedInputs
    from flaxformer_lite.pretrained.sentences import SentenceLayers
    from flaxformer_lite.pretrained.word_vectors import WordVectors
    from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

LOG = logging.getLogger("flaxformer_lite")


def load_pretrained(
    path: str | Path,
    head: str | None = None,
    *,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    family: str | None = None,
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
    num_labels: int | None = None,
    seed: int = 0,
    adapter: str | Path | AdapterConfig | None = None,
    allow_plugins: registry.Allowed = False,
    **overrides: Any,
) -> tuple[nn.Module, dict]:
    """Loads a model and its parameters from published weights or from a training workdir.

        >>> head = "sequence_classification"
        >>> model, params = load_pretrained("path/to/bert", head=head)  # doctest: +SKIP
        >>> output = model.apply({"params": params}, ids, attention_mask=mask)  # doctest: +SKIP
        >>> output.logits  # doctest: +SKIP

    Args:
      path: a directory that transformers' save_pretrained wrote, with config.json and
        model.safetensors (or shards with their index, or Flax's old msgpack files); a checkpoint of
        another program (docs/migration/lost-homes.md); or the `--workdir` of a training run, whose
        best weights are read if it keeps them, else its newest undamaged checkpoint. Either may be
        a gs:// or s3:// address. Or a model on the Hugging Face Hub, hf://ORG/NAME or
        hf://ORG/NAME@REVISION.
      head: the head of the model; None is the one that `architectures` in config.json names, or
        that the run trained.
      dtype: dtype of activations and matmuls, `float32` or `bfloat16`.
      param_dtype: dtype of the parameters; None is `dtype`.
      mesh: the devices for the parameters, by the partition rules of the family; each device reads
        only its shard from the file.
      family: a model family of your own that reads the directory, as `module:Model`; None is the
        package's family for the model_type. A workdir names its family itself.
      new_head: whether to initialize parameters of the head that the directory lacks, with a
        warning in the log, instead of raising an error.
      labels: with `new_head`, the names of the classes, or their number. A head of the directory
        that has other classes is initialized anew.
      num_labels: with `new_head`, the number of classes; the same as a number in `labels`.
      seed: random seed for new parameters.
      adapter: a directory with an adapter for the model, as PEFT or `save_adapter` writes it, or
        the record of a new one, such as `LoraConfig(rank=8)`, which is initialized with `seed`. Its
        factors are parameters of their own, which `merge_adapter` adds to the weights.
      allow_plugins: whether the config of a workdir may name plug-ins outside this package;
        importing them runs the code of whoever wrote them. True for all, or a collection of names.
      **overrides: fields of ModelConfig that change no weight: dropout, dropout_at, scan, remat,
        attention; `quantize` ("int8", "int4" or "nf4") holds the layers' matrices in few bits, and
        `cache="int8"` keys and values while generating (docs/precision.md).

    Returns:
      The linen module, and its parameters, a nested dict of arrays of `param_dtype`.

    Raises:
      ConfigError: the config needs something that this package does not compute.
      WeightsError: a file is damaged, or its tensors do not fit the config: some are missing, extra
        or of another shape.
      CheckpointError: the workdir has no undamaged checkpoint.
    """
    first_model.prepare_process()
    overrides |= {"dtype": dtype, "param_dtype": param_dtype or dtype}
    labels = load.classes_of(labels, num_labels, new_head)
    new_adapter = adapter if isinstance(adapter, AdapterConfig) else None
    model, stored = open_pretrained(
        path,
        head,
        family=family,
        new_head=new_head,
        labels=labels,
        adapter=None if isinstance(adapter, AdapterConfig) else adapter,
        allow_plugins=allow_plugins,
        **overrides,
    )
    if num_labels is not None and model.cfg.head not in load.NAMED_HEADS:
        raise ConfigError(
            f"num_labels={num_labels}: head={model.cfg.head!r} has no classes; pass head= as one of"
            f" {', '.join(load.NAMED_HEADS)}."
        )
    if new_head:
        stored = load.with_new(model, stored, seed)
    if new_adapter is None:
        return model, place(model.cfg, stored, mesh)
    model, stored = load.with_adapter(model, stored, new_adapter, seed)
    params = place(model.cfg, stored, mesh)
    return model, with_initial_factors(new_adapter, params)


def load_labels(path: str | Path, *, allow_plugins: registry.Allowed = False) -> list[str]:
    """Loads the names of the classes of a classifier, in the order of its logits.

        >>> load_labels("path/to/sst2")[int(logits[0].argmax())]  # doctest: +SKIP

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Returns:
      The names; `LABEL_0`, `LABEL_1` and so on if the directory has none.

    Raises:
      ConfigError, WeightsError: config.json is missing, or its names are invalid.
    """
    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return load.read_labels(folder)
    from flaxformer_lite.checkpoints import workdir

    run = workdir.read_config(folder, allow_plugins=allow_plugins)
    labels = list(run.objective.class_names)
    return labels or [f"LABEL_{i}" for i in range(run.model.num_labels)]


def load_tokenizer(
    path: str | Path,
    *,
    family: str | None = None,
    allow_plugins: registry.Allowed = False,
) -> "PublishedTokenizer":
    """Loads the tokenizer of a directory of published weights, or of a training run's workdir.

        >>> tokenizer = load_tokenizer("path/to/bert")  # doctest: +SKIP

    Args:
      path: a directory with tokenizer.json, or with spiece.model or tokenizer.model and the
        config.json of a T5, Llama, Mistral or Gemma; tokenizer_config.json, special_tokens_map.json
        and chat_template.jinja are read if they exist. Or the `--workdir` of a training run.
      family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: there is no tokenizer of a known kind, or it is damaged.
    """
    from flaxformer_lite.pretrained import tokenizer

    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return tokenizer.read_tokenizer(folder, family=family)
    from flaxformer_lite.checkpoints import workdir
    from flaxformer_lite.pretrained import sentences
    from flaxformer_lite.text import tokenizer as plain

    cfg = workdir.read_config(folder, allow_plugins=allow_plugins)
    fields = cfg.objective.published_fields()
    template = fields.get("chat_template", "")
    inner = plain.load(workdir.tokenizer_folder(folder))
    is_sentence_model = sentences.trained_layers(fields, cfg.data.length) is not None
    return tokenizer.framed(inner, cfg.model.skeleton, template, as_published=is_sentence_model)


def load_word_vectors(
    path: str | Path, *, family: str | None = None, allow_plugins: registry.Allowed = False
) -> "WordVectors":
    """Loads the token table of published weights or of a training workdir, and nothing else.

        >>> vectors = load_word_vectors("path/to/bert")  # doctest: +SKIP
        >>> vectors.analogy("paris", "france", "london", 1)  # doctest: +SKIP

    Args:
      path, family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError, CheckpointError: the table cannot be read, or no token of the
        vocabulary is a whole word.
    """
    from flaxformer_lite.pretrained import word_vectors
    from flaxformer_lite.text import tokenizer as plain

    folder = on_disk(path)
    _, stored = open_pretrained(folder, family=family, allow_plugins=allow_plugins)
    where = str(folder)
    table_VD = word_vectors.token_table(stored, where)
    published = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    tokenizer_folder = folder
    if is_workdir(folder):
        from flaxformer_lite.checkpoints import workdir

        tokenizer_folder = workdir.tokenizer_folder(folder)
    pieces = plain.load(tokenizer_folder).pieces()
    return word_vectors.vectors_of(table_VD, published, pieces, where)


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
    from flaxformer_lite.checkpoints.resolve_path import new_place
    from flaxformer_lite.pretrained import save

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
) -> "Path | TrainedInputs | None":
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
    if not is_workdir(folder):
        return folder
    from flaxformer_lite.checkpoints import workdir
    from flaxformer_lite.pretrained import sentences
    from flaxformer_lite.pretrained.save import TrainedInputs
    from flaxformer_lite.text import tokenizer as plain

    run = workdir.read_config(folder, allow_plugins=allow_plugins or like is None)
    fields = run.objective.published_fields()
    sentence_layers = sentences.trained_layers(fields, run.data.length)
    return TrainedInputs(
        tokenizer=plain.load(workdir.tokenizer_folder(folder)),
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
    from flaxformer_lite.checkpoints.resolve_path import new_place
    from flaxformer_lite.pretrained.save_adapter import write_adapter

    with new_place(path) as made:
        write_adapter(made, model, params, base=base or _base(model.source))


def open_pretrained(
    path: str | Path,
    head: str | None = None,
    *,
    family: str | None = None,
    new_head: bool = False,
    companion: bool = False,
    labels: Sequence[str] | int | None = None,
    adapter: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
    **overrides: Any,
) -> tuple[nn.Module, dict]:
    """Opens a directory like `load_pretrained`, but reads each parameter only when it is used.

    Args:
      path, head, family, labels, adapter, allow_plugins, **overrides: as in `load_pretrained`.
      new_head: whether the head may lack parameters, which are then left out.
      companion: whether to open the second model of a run, such as ELECTRA's generator.

    Returns:
      The linen module, and a nested dict of `Stored` parameters.

    Raises:
      ConfigError, WeightsError, CheckpointError: as `load_pretrained`.
    """
    check_path(path)
    source = str(path)
    if not is_address(path):
        source = str(expand_home(path))
    load.check_overrides(overrides)
    form = overrides.pop("quantize", None)
    if form is not None:
        raise_if_invalid("quantize", form, OneOf(choices.QUANTIZATIONS)(form))
    folder = on_disk(path)
    if is_workdir(folder):
        if adapter is not None:
            raise ConfigError(
                f"adapter={adapter}: {folder} is a workdir; convert it first (flaxformer_lite"
                " convert)."
            )
        from flaxformer_lite.checkpoints.workdir import read_run

        run = read_run(folder, companion=companion, allow_plugins=allow_plugins)
        model, stored = _open_run(run, folder, head, overrides, new_head, labels)
        return _in_form(model, stored, form)
    if companion:
        raise ConfigError(
            f"{folder}: published weights hold one model; only a training workdir can have a"
            " companion."
        )
    model, stored = load.open_published(
        folder,
        head,
        source=source,
        family=family,
        new_head=new_head,
        labels=labels,
        adapter=None if adapter is None else on_disk(adapter),
        **overrides,
    )
    return _in_form(model, stored, form)


def _in_form(model: nn.Module, stored: dict, form: str | None) -> tuple[nn.Module, dict]:
    """Returns the model and its parameters, with matrices held in few bits if a form is named."""
    if form is None:
        return model, stored
    from flaxformer_lite.pretrained.quantized_params import with_scheme

    return with_scheme(model, stored, form)


def published_settings(path: str | Path) -> Json:
    """Reads the generation settings of a model's authors, as keyword arguments of `generate`.

        >>> settings = published_settings(path) | {"max_new_tokens": 64}  # doctest: +SKIP
        >>> generate(model, params, prompts, **settings)  # doctest: +SKIP

    As in transformers, they are in generation_config.json, or in config.json if that file does not
    exist. Settings of lengths are left out.

    Args:
      path: a directory that transformers' save_pretrained wrote.

    Raises:
      ConfigError: a file is not JSON, a setting has a wrong type, or transformers computes it and
        `generate` does not.
    """
    from flaxformer_lite.inference.published import read_settings

    return read_settings(on_disk(path, weights=False))


def load_sentence_layers(
    path: str | Path, *, allow_plugins: registry.Allowed = False
) -> "SentenceLayers":
    """Loads the layers that follow the encoder of a sentence model: pooling, dense, normalization.

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Returns:
      The layers; the default is mean pooling, if the directory says nothing.

    Raises:
      ConfigError, WeightsError: the directory has a kind of pooling or layer that is not supported.
    """
    from flaxformer_lite.pretrained import sentences

    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return sentences.read_sentence_layers(folder)
    from flaxformer_lite.checkpoints import workdir

    run = workdir.read_config(folder, allow_plugins=allow_plugins)
    layers = sentences.trained_layers(run.objective.published_fields(), run.data.length)
    return layers or sentences.SentenceLayers()


def template_of(path: str | Path, *, allow_plugins: registry.Allowed = False) -> str:
    """Reads the chat template of a directory, with its special tokens filled in; "" if none."""
    from flaxformer_lite.pretrained import chat

    return chat.standalone_template(load_tokenizer(path, allow_plugins=allow_plugins))


def check_path(path: object) -> None:
    """Refuses what names no directory."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"path is {type(path).__name__}: must be the name of a directory, or an address in a"
            " store, such as 'path/to/gpt2'."
        )


def on_disk(path: str | Path, *, weights: bool = True) -> Path:
    """Returns a model's directory on this machine; see `checkpoints.resolve_path.on_disk`."""
    check_path(path)
    if not is_address(path):
        return expand_home(path)
    from flaxformer_lite.checkpoints import resolve_path

    return resolve_path.on_disk(path, weights=weights)


def is_address(path: object) -> bool:
    """Returns whether a path is an address in a store or on the Hub."""
    return is_url(path) or hub.is_hub(path)


def is_workdir(folder: Path) -> bool:
    """Returns whether training, not save_pretrained, wrote this folder.

    Only published configs have a model_type, so the code for workdirs need not be imported to
    recognize them.
    """
    try:
        if "model_type" in read_object(folder / "config.json"):
            return False
    except ConfigError:  # missing, or truncated
        pass
    from flaxformer_lite.checkpoints import workdir

    return workdir.is_workdir(folder)


def _base(source: str) -> str | None:
    """Returns the directory that a model was loaded from, or that its run started from."""
    if source and not is_address(source) and is_workdir(Path(source)):
        from flaxformer_lite.checkpoints import workdir

        source = workdir.started_from(Path(source))
    return hub.name_of(source) if hub.is_hub(source) else source or None


def _open_run(
    run: "Run",
    path: Path,
    head: str | None,
    overrides: dict[str, Any],
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
) -> tuple[nn.Module, dict]:
    """Opens the parameters of a run; `head` may be any head whose parameters the run has."""
    for line in run.notices:
        LOG.warning(line)
    kind: Any = type(run.model)
    trained = run.model.cfg
    if head is not None and head not in kind.heads:
        raise ConfigError(
            f"head={head!r}: no such head; {trained.family} has {', '.join(kind.heads)}."
        )
    cfg = dataclasses.replace(trained, head=head or trained.head, **overrides)
    cfg, others = load.with_labels(cfg, labels if new_head else None, run.cfg.objective.class_names)
    model = kind(cfg, source=str(path))
    stored = {}  # by the paths of unstacked layers
    for name, (leaf, index) in by_layer(trained, flatten_dict(run.params, sep="/")).items():
        stored[name] = leaf[index] if index else leaf
    shapes = parameter_shapes(model)
    missing = set()
    for name, leaf in side_by_side(model.cfg, shapes).items():
        if name not in stored or stored[name].shape != leaf.shape:
            missing.add(name)
    new = {name for name in missing if new_head and load.is_of_head(name)}
    if others:
        new |= load.per_class(model)
    lacking = sorted(missing - new)
    if lacking:
        raise WeightsError(
            f"{path}: head={head!r} needs {lacking[0]}, which this run has not trained; its head is"
            f" {trained.head!r}."
        )
    kept = {name: leaf for name, leaf in shapes.items() if name not in new}
    return model, stored_tree(model.cfg, kept, lambda name: stored[name].__getitem__)


def _check_kind(path: Path) -> None:
    """Rejects a directory that holds something other than a model."""
    from flaxformer_lite.pretrained import save

    if not path.is_dir():
        save.check_names(str(path), [])
        return
    if is_workdir(path):
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    save.check_names(str(path), [entry.name for entry in path.iterdir()])
