"""Loading of models and parameters from a directory, with nothing missing, left over or
invented."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding

from flaxformer_lite import registry, versions
from flaxformer_lite.checkpoints.workdir import (
    Run,
    is_workdir,
    read_config as read_run_config,
    read_run,
)
from flaxformer_lite.config import ConfigError, ModelConfig, check_family
from flaxformer_lite.config.execution import EXECUTION_FIELDS
from flaxformer_lite.models.parameter_shapes import dummy_inputs, flat_init, parameter_shapes
from flaxformer_lite.models.weight_map import Fields
from flaxformer_lite.pretrained import (
    check_tensors,
    folder,
    hf_config,
    load_adapter,
    resolve_path,
    tensor_names,
)
from flaxformer_lite.pretrained.layouts import Place
from flaxformer_lite.pretrained.lazy_params import reader_of, stored_tree
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.parameters import param_specs
from flaxformer_lite.storage.stores import is_url

BODY = (
    "token_embed",
    "embed",
    "encoder_embed",
    "decoder_embed",
    "decoder_token_embed",
    "encoder",
    "decoder",
)
NAMED_HEADS = ("sequence_classification", "token_classification")  # whose classes have names
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
    labels = _classes(labels, num_labels, new_head)
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
    if num_labels is not None and model.cfg.head not in NAMED_HEADS:
        raise ConfigError(
            f"num_labels={num_labels}: head={model.cfg.head!r} has no classes; pass head= as one of"
            f" {', '.join(NAMED_HEADS)}."
        )
    return model, _place(model.cfg, _with_new(model, stored, seed) if new_head else stored, mesh)


def _classes(
    labels: Sequence[str] | int | None, num_labels: int | None, new_head: bool
) -> Sequence[str] | int | None:
    """Returns the classes of a new head, by name or number."""
    if num_labels is None:
        return labels
    if not new_head:
        raise ConfigError(
            f"num_labels={num_labels!r}: comes from config.json; with new_head=True it is that of a"
            " head that is made, as is labels=[...]."
        )
    if isinstance(num_labels, bool) or not isinstance(num_labels, int) or num_labels < 1:
        raise ConfigError(f"num_labels={num_labels!r}: must be a whole number, at least 1.")
    count = labels if isinstance(labels, int) or labels is None else len(labels)
    if count not in (None, num_labels):
        raise ConfigError(
            f"num_labels={num_labels}: labels={labels!r} are {count}; leave one of the two out."
        )
    return num_labels if labels is None else labels


def load_labels(path: str | Path, *, allow_plugins: registry.Allowed = False) -> list[str]:
    """Loads the names of a classifier's classes, in the order of its logits.

        >>> load_labels("path/to/sst2")[int(logits[0].argmax())]  # doctest: +SKIP

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError: there is no config.json, or its names are invalid.
    """
    path = resolve_path.on_disk(path, weights=False)
    if is_workdir(path):
        run = read_run_config(path, allow_plugins=allow_plugins)
        return list(getattr(run.objective, "labels", ())) or [
            f"LABEL_{i}" for i in range(run.model.num_labels)
        ]
    published = folder.read_config(path)
    return hf_config.read_labels(published) or [
        f"LABEL_{i}" for i in range(Fields(published).size("num_labels", 2))
    ]


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
    if unknown := sorted(set(overrides) - set(EXECUTION_FIELDS)):
        raise ConfigError(
            f"{unknown[0]}: comes from config.json; only {', '.join(EXECUTION_FIELDS)} can be"
            " overridden."
        )
    path = resolve_path.on_disk(path)
    if is_workdir(path):
        if adapter is not None:
            raise ConfigError(
                f"adapter={adapter}: {path} is a workdir; convert it first (flaxformer_lite"
                " convert)."
            )
        run = read_run(path, companion=companion, allow_plugins=allow_plugins)
        return _open_run(run, path, head, overrides, new_head, labels)
    if companion:
        raise ConfigError(
            f"{path}: published weights are of one model; only a training workdir has a companion."
        )
    added = None if adapter is None else load_adapter.open_adapter(adapter)
    published = folder.read_config(path)
    if added and head is None:
        head = added.head(hf_config.family_of(published, path, family).PUBLISHED.heads)
    plugin, cfg = hf_config.open_config(published, path, head, family, **overrides)
    cfg, others = with_labels(cfg, labels, hf_config.read_labels(published) if new_head else [])
    tensors = tensor_names.without_prefix(plugin.PUBLISHED, folder.open_weights(path))
    tensors = check_tensors.with_computed_biases(plugin.PUBLISHED, tensors)
    if added:
        tensors = added.replace(plugin.PUBLISHED, cfg, tensors)
        cfg = dataclasses.replace(cfg, num_labels=added.labels(plugin.PUBLISHED, cfg))
    if not cfg.share_layers and max(cfg.encoder_layers, cfg.decoder_layers) > len(
        tensors
    ):  # before tracing
        raise WeightsError(
            f"{path}: config.json has {max(cfg.encoder_layers, cfg.decoder_layers)} layers, but the"
            f" weights are only {len(tensors)} tensors; one of the two is from another model."
        )
    cfg = check_tensors.untie_where_tables_differ(plugin.PUBLISHED, cfg, tensors)
    model = check_family(cfg)(cfg, source=source)
    shapes = parameter_shapes(model)
    found = tensor_names.places(
        plugin.PUBLISHED, cfg, {k: v.shape for k, v in side_by_side(cfg, shapes).items()}
    )
    new = {
        one
        for one, place in found.items()
        if new_head and is_of_head(one) and not _has(tensors, place)
    }
    new |= _per_class(model) if others else set()
    check_tensors.check(plugin.PUBLISHED, cfg, path, tensors, found, new)
    kept = {one: leaf for one, leaf in shapes.items() if one not in new}
    readers = {one: reader_of(place, tensors) for one, place in found.items()}
    if added:
        cfg = dataclasses.replace(cfg, adapter=added.config(plugin.PUBLISHED, cfg, shapes))
        readers |= added.readers(plugin.PUBLISHED, cfg, shapes)
        model = model.clone(cfg=cfg)
        kept |= {one: leaf for one, leaf in parameter_shapes(model).items() if one not in shapes}
    return model, stored_tree(cfg, kept, readers.__getitem__)


def is_of_head(path: str) -> bool:
    """Returns whether a parameter belongs to a head, not to the body that all heads share."""
    return path.split("/")[0] not in BODY


def with_labels(
    cfg: ModelConfig, labels: Sequence[str] | int | None, own: Sequence[str]
) -> tuple[ModelConfig, bool]:
    """Returns the config for these classes, and whether they are others than the weights' own."""
    if not labels or cfg.head not in NAMED_HEADS:
        return cfg, False
    count = labels if isinstance(labels, int) else len(labels)
    unnamed = [f"LABEL_{i}" for i in range(count)]
    numbers = [str(i) for i in range(count)]  # that is, classes without names
    known = numbers if list(own or unnamed) == unnamed else list(own)
    others = count != cfg.num_labels or (
        not isinstance(labels, int) and list(labels) not in (list(own), known)
    )
    return dataclasses.replace(cfg, num_labels=count), others


def _per_class(model: Any) -> set[str]:
    """Returns the parameters whose shape depends on the number of classes."""
    larger = type(model)(dataclasses.replace(model.cfg, num_labels=model.cfg.num_labels + 1))
    shapes = parameter_shapes(model)
    others = parameter_shapes(larger)
    return {path for path, leaf in shapes.items() if leaf.shape != others[path].shape}


def _has(tensors: dict[str, Tensor], place: Place) -> bool:
    return place.name in tensors and tensors[place.name].shape == place.file_shape


def _with_new(model: Any, stored: dict, seed: int) -> dict:
    """Adds the parameters that are missing, as a fresh model has them."""
    flat = flatten_dict(stored, sep="/")
    shapes = parameter_shapes(model)
    missing = sorted(set(shapes) - set(flat))
    if not missing:
        return stored
    LOG.warning("new parameters: %s; train them before use.", ", ".join(missing))
    inputs = dummy_inputs(type(model), model.cfg)
    initial = jax.jit(
        lambda key: {p: x for p, x in flat_init(model, key, inputs).items() if p in missing}
    )
    return unflatten_dict(flat | initial(jax.random.key(seed)), sep="/")


def _open_run(
    run: Run,
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
    cfg, others = with_labels(
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
    new = {one for one in missing if new_head and is_of_head(one)} | (
        _per_class(model) if others else set()
    )
    if lacking := sorted(missing - new):
        raise WeightsError(
            f"{path}: head={head!r} needs {lacking[0]}, which this run has not trained; its head is"
            f" {trained.head!r}."
        )
    kept = {one: leaf for one, leaf in shapes.items() if one not in new}
    return model, stored_tree(model.cfg, kept, lambda one: held[one].__getitem__)


def _place(cfg: ModelConfig, stored: dict, mesh: Mesh | None) -> dict:
    flat = flatten_dict(stored, sep="/")
    if not mesh:
        return unflatten_dict(
            {path: jax.device_put(np.asarray(leaf)) for path, leaf in flat.items()}, sep="/"
        )
    specs = flatten_dict(param_specs(stored, parameter_rules.rules(cfg), mesh), sep="/")
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    made = {
        p: jax.make_array_from_callback(leaf.shape, shardings[p], leaf.read)
        for p, leaf in flat.items()
    }
    return unflatten_dict(made, sep="/")
