"""Models and tokenizers by the name that a user gives: a directory of published weights, a training
run's workdir, or the address of either in an object store.

This is the one place that tells the three apart. Files of the layers below take a folder on this
machine; what knows stores and workdirs is imported only for these, as most models are neither.
"""

import dataclasses
import logging
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from flaxformer_lite import registry, versions
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import read_object
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained import load
from flaxformer_lite.pretrained.lazy_params import stored_tree
from flaxformer_lite.pretrained.place_params import place
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side
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
    adapter: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
    **overrides: Any,
) -> tuple[Any, dict]:
    """Loads a model and its parameters from a directory written by transformers' save_pretrained,
    or from a workdir.

        >>> head = "sequence_classification"
        >>> model, params = load_pretrained("path/to/bert", head=head)  # doctest: +SKIP
        >>> output = model.apply({"params": params}, ids, attention_mask=mask)  # doctest: +SKIP
        >>> output.logits  # doctest: +SKIP

    Args:
      path: a directory, here or at a gs:// or s3:// address, with config.json and model.safetensors
        (or shards with their index, or Flax's old msgpack files); or the `--workdir` of a training
        run, in which case the best weights are read if it keeps them, else the newest undamaged
        checkpoint.
      head: what sits on top; None takes what `architectures` in config.json names, or what the run
        trained.
      dtype: of activations and matmuls, `float32` or `bfloat16`.
      param_dtype: of the parameters; None is dtype.
      mesh: where parameters go, by the family's partition rules; each device's part is read from
        the file by itself.
      family: whose names are read, as `module:Model`; None is the package's own of this model_type.
        A workdir knows its own.
      new_head: whether parameters of the head that the directory lacks are made new, and said in a
        log message.
      labels: with `new_head`, names of the classes or their number; a head for others is made new.
      num_labels: with `new_head`, the same as a number in `labels`.
      seed: of new parameters.
      adapter: a directory with a LoRA adapter of the model, as PEFT or `save_adapter` writes it. It
        stays beside the weights; `merge_adapter` joins the two.
      allow_plugins: whether the config of a workdir may name plug-ins outside this package, which
        are imported: code of whoever wrote it. A collection of names allows these only.
      **overrides: dropout, dropout_at, scan, remat, attention: fields of ModelConfig that change no
        weight.

    Returns:
      The linen module, and its parameters as arrays of param_dtype.

    Raises:
      ConfigError: the config cannot be computed exactly.
      WeightsError: a file is damaged, or has missing, extra or wrongly shaped tensors for the
        config.
      CheckpointError: a workdir has no undamaged checkpoint.
    """
    versions.notice_untested()
    overrides |= {"dtype": dtype, "param_dtype": param_dtype or dtype}
    labels = load.classes_of(labels, num_labels, new_head)
    model, stored = open_pretrained(
        path,
        head,
        family=family,
        new_head=new_head,
        labels=labels,
        adapter=adapter,
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
    return model, place(model.cfg, stored, mesh)


def load_labels(path: str | Path, *, allow_plugins: registry.Allowed = False) -> list[str]:
    """Loads the names of a classifier's classes, in the order of its logits.

        >>> load_labels("path/to/sst2")[int(logits[0].argmax())]  # doctest: +SKIP

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError: there is no config.json, or its names are invalid.
    """
    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return load.read_labels(folder)
    from flaxformer_lite.checkpoints import workdir

    run = workdir.read_config(folder, allow_plugins=allow_plugins)
    return list(getattr(run.objective, "labels", ())) or [
        f"LABEL_{i}" for i in range(run.model.num_labels)
    ]


def load_tokenizer(
    path: str | Path,
    *,
    family: str | None = None,
    allow_plugins: registry.Allowed = False,
) -> "PublishedTokenizer":
    """Loads the tokenizer of a directory of published weights, or of a training run's workdir.

        >>> tokenizer = load_tokenizer("path/to/bert")  # doctest: +SKIP

    Args:
      path: holds tokenizer.json; or the files that older checkpoints have instead, such as
        vocab.txt, vocab.json and merges.txt, or a sentencepiece model, beside config.json; with
        tokenizer_config.json, special_tokens_map.json and chat_template.jinja where there are such.
        Or is the `--workdir` of train.py.
      family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: no tokenizer that we read, or a damaged one.
    """
    from flaxformer_lite.pretrained import tokenizer

    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return tokenizer.read_tokenizer(folder, family=family)
    from flaxformer_lite.checkpoints import workdir
    from flaxformer_lite.text import tokenizer as plain

    cfg = workdir.read_config(folder, allow_plugins=allow_plugins)
    template = cfg.objective.published_fields().get("chat_template", "")
    inner = plain.load(workdir.tokenizer_folder(folder))
    return tokenizer.framed(inner, cfg.model.skeleton, template)


def load_word_vectors(
    path: str | Path, *, family: str | None = None, allow_plugins: registry.Allowed = False
) -> "WordVectors":
    """Loads the token table of a directory of published weights, or of a training run's workdir,
    and nothing else of it.

        >>> vectors = load_word_vectors("path/to/bert")  # doctest: +SKIP
        >>> vectors.analogy("paris", "france", "london", 1)  # doctest: +SKIP

    Args:
      path, family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError, CheckpointError: it cannot be read, or no token of its vocabulary
        is a whole word.
    """
    from flaxformer_lite.pretrained import word_vectors
    from flaxformer_lite.text import tokenizer as plain

    folder = on_disk(path)
    _, stored = open_pretrained(folder, family=family, allow_plugins=allow_plugins)
    where = str(folder)
    table_VD = word_vectors.token_table(stored, where)
    published = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    own = folder
    if is_workdir(folder):
        from flaxformer_lite.checkpoints import workdir

        own = workdir.tokenizer_folder(folder)
    return word_vectors.vectors_of(table_VD, published, plain.load(own).pieces(), where)


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
    from flaxformer_lite.checkpoints.resolve_path import new_place
    from flaxformer_lite.pretrained import save

    if not is_url(path):
        _check_kind(Path(path).expanduser())

    def stays(name: str) -> bool:
        return not fnmatch(name, "model*.safetensors*")

    def check(names: list[str]) -> None:
        save.check_names(str(path), list(filter(stays, names)))

    with new_place(path, check=check, carry=stays) as made:
        save.write_pretrained(
            made,
            model,
            params,
            like=origin_of(model, like, allow_plugins=allow_plugins),
            labels=labels,
            shard_bytes=shard_bytes,
        )


def origin_of(
    model: Any, like: str | Path | None = None, *, allow_plugins: registry.Allowed = False
) -> "Path | TrainedInputs | None":
    """Returns what `write_pretrained` takes a tokenizer, labels and other fields from.

    Args:
      model: a linen module.
      like: a published directory or workdir; None is where the model was loaded from, if anywhere.
      allow_plugins: as in `load_pretrained`, for `like`; that from which a model was loaded was
        allowed then.
    """
    source = like or model.source
    if not source:
        return None
    folder = on_disk(source, weights=False)
    if not is_workdir(folder):
        return folder
    from flaxformer_lite.checkpoints import workdir
    from flaxformer_lite.pretrained.save import TrainedInputs
    from flaxformer_lite.text import tokenizer as plain

    run = workdir.read_config(folder, allow_plugins=allow_plugins or like is None)
    fields = run.objective.published_fields()
    return TrainedInputs(
        tokenizer=plain.load(workdir.tokenizer_folder(folder)),
        length=run.data.length,
        labels=tuple(fields.pop("labels", ())),
        chat_template=fields.pop("chat_template", ""),
        pooling=fields.pop("pooling", ""),
        fields=fields,
    )


def save_adapter(path: str | Path, model: Any, params: dict, *, base: str | None = None) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, which PEFT and
    `load_pretrained(..., adapter=)` read.

        >>> save_adapter("published/adapter", *load_pretrained("runs/tuned"))  # doctest: +SKIP

    Matrices that the published model fuses, such as GPT-2's query, key and value, become one of
    their ranks together, as each has an A of its own. A trained classifier is written whole.

    Args:
      path: a new directory.
      model: a linen module with an adapter, of a family with published weights.
      params: its parameters, scanned or not.
      base: the name or directory of the model that it is for; None is where `model` or its run
        began.

    Raises:
      ConfigError: the model has no LoRA adapter or no published form, or the directory exists or
        cannot be written.
      WeightsError: params do not belong to the model.
    """
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
) -> tuple[Any, dict]:
    """Opens a directory like `load_pretrained`, with each parameter a `Stored` that is read from
    its file on demand.

    With `new_head`, parameters of the head that the directory lacks are left out; with `companion`,
    the second model of a run is opened, such as ELECTRA's generator.

    Raises:
      ConfigError, WeightsError, CheckpointError: as `load_pretrained`.
    """
    source = str(path if is_url(path) else Path(path).expanduser())
    load.check_overrides(overrides)
    folder = on_disk(path)
    if is_workdir(folder):
        if adapter is not None:
            raise ConfigError(
                f"adapter={adapter}: {folder} is a workdir; convert it first (flaxformer_lite"
                " convert)."
            )
        from flaxformer_lite.checkpoints.workdir import read_run

        run = read_run(folder, companion=companion, allow_plugins=allow_plugins)
        return _open_run(run, folder, head, overrides, new_head, labels)
    if companion:
        raise ConfigError(
            f"{folder}: published weights are of one model; only a training workdir has a"
            " companion."
        )
    return load.open_published(
        folder,
        head,
        source=source,
        family=family,
        new_head=new_head,
        labels=labels,
        adapter=None if adapter is None else on_disk(adapter),
        **overrides,
    )


def published_settings(path: str | Path) -> dict[str, Any]:
    """Reads the authors' settings as keyword arguments of `generate`, except lengths.

        >>> settings = published_settings(path) | {"max_new_tokens": 64}  # doctest: +SKIP
        >>> generate(model, params, prompts, **settings)  # doctest: +SKIP

    Args:
      path: a directory written by transformers' save_pretrained; without either file, nothing is
        set.

    As in transformers, config.json counts only where there is no generation_config.json.

    Raises:
      ConfigError: a file is not JSON, a setting has another type, or is one that transformers
        computes and `generate` does not.
    """
    from flaxformer_lite.inference.published import read_settings

    return read_settings(on_disk(path, weights=False))


def load_sentence_layers(
    path: str | Path, *, allow_plugins: registry.Allowed = False
) -> "SentenceLayers":
    """Loads the layers of a sentence model's directory, or of a run's workdir; the defaults where
    there is nothing.

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError: it pools in another way, or has other layers.
    """
    from flaxformer_lite.pretrained import sentences

    folder = on_disk(path, weights=False)
    if not is_workdir(folder):
        return sentences.read_sentence_layers(folder)
    from flaxformer_lite.checkpoints import workdir

    run = workdir.read_config(folder, allow_plugins=allow_plugins)
    pooling = run.objective.published_fields().get("pooling", "")
    return sentences.SentenceLayers(pooling, run.data.length if pooling else None)


def template_of(path: str | Path, *, allow_plugins: registry.Allowed = False) -> str:
    """Reads the chat template of a directory, with the special tokens that it names set in it; ""
    if there is none."""
    from flaxformer_lite.pretrained import chat

    return chat.standalone_template(load_tokenizer(path, allow_plugins=allow_plugins))


def on_disk(path: str | Path, *, weights: bool = True) -> Path:
    """Returns a model's directory on this machine: the same one, or a copy of the files that are
    read at an address; arguments and exceptions are those of `checkpoints.resolve_path.on_disk`."""
    if not is_url(path):
        return Path(path).expanduser()
    from flaxformer_lite.checkpoints import resolve_path

    return resolve_path.on_disk(path, weights=weights)


def is_workdir(folder: Path) -> bool:
    """Returns whether training wrote this folder, not save_pretrained.

    Only published files have a model_type, so that they are known without what reads workdirs.
    """
    try:
        if "model_type" in read_object(folder / "config.json"):
            return False
    except ConfigError:  # there is none, or it was cut
        pass
    from flaxformer_lite.checkpoints import workdir

    return workdir.is_workdir(folder)


def _base(source: str) -> str | None:
    """Returns where a model began: the directory that it was loaded from, or that its run started
    from."""
    if source and not is_url(source) and is_workdir(Path(source)):
        from flaxformer_lite.checkpoints import workdir

        return workdir.started_from(Path(source)) or None
    return source or None


def _open_run(
    run: "Run",
    path: Path,
    head: str | None,
    overrides: dict[str, Any],
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
) -> tuple[Any, dict]:
    """Opens a run's parameters in the layout of the overrides; another head works if the run has
    all its parameters."""
    for what in run.notices:
        LOG.warning(what)
    kind = type(run.model)
    trained = run.model.cfg
    if head is not None and head not in kind.heads:
        raise ConfigError(
            f"head={head!r}: no such head; {trained.family} has {', '.join(kind.heads)}."
        )
    cfg = dataclasses.replace(trained, head=head or trained.head, **overrides)
    cfg, others = load.with_labels(
        cfg, labels if new_head else None, getattr(run.cfg.objective, "labels", ())
    )
    model = kind(cfg, source=str(path))
    flat = flatten_dict(run.params, sep="/")
    held = {
        one: leaf if row is None else leaf[row]
        for one, (leaf, row) in by_layer(trained, flat).items()
    }
    shapes = parameter_shapes(model)
    wanted = side_by_side(model.cfg, shapes)
    missing = {
        one for one, leaf in wanted.items() if one not in held or held[one].shape != leaf.shape
    }
    new = {one for one in missing if new_head and load.is_of_head(one)} | (
        load.per_class(model) if others else set()
    )
    if lacking := sorted(missing - new):
        raise WeightsError(
            f"{path}: head={head!r} needs {lacking[0]}, which this run has not trained; its head is"
            f" {trained.head!r}."
        )
    kept = {one: leaf for one, leaf in shapes.items() if one not in new}
    return model, stored_tree(model.cfg, kept, lambda one: held[one].__getitem__)


def _check_kind(path: Path) -> None:
    """Refuses a directory that holds something else than a model."""
    from flaxformer_lite.pretrained import save

    if path.is_dir() and is_workdir(path):
        raise ConfigError(
            f"{path}: is a training workdir, whose config.json would be lost; choose another"
            " directory."
        )
    save.check_names(str(path), [entry.name for entry in path.iterdir()] if path.is_dir() else [])
