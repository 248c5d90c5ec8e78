"""Loads models and parameters from a directory of published weights.

Nothing may be missing, left over or invented.
"""

import dataclasses
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError, ModelConfig, check_family
from flaxformer_lite.config.execution import EXECUTION_FIELDS
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.models.fields import Fields
from flaxformer_lite.models.parameter_shapes import dummy_inputs, flat_init, parameter_shapes
from flaxformer_lite.pretrained import (
    check_tensors,
    hf_config,
    tensor_names,
)
from flaxformer_lite.pretrained.folder import open_weights, read_config
from flaxformer_lite.pretrained.layouts import TensorLayout
from flaxformer_lite.pretrained.lazy_params import reader_of, stored_tree
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError
from flaxformer_lite.pretrained.tensor_forms import with_plain_forms
from flaxformer_lite.pretrained.tensor_names import shapes_side_by_side

BODY = (
    "token_embed",
    "embed",
    "encoder_embed",
    "decoder_embed",
    "decoder_token_embed",
    "layer_inputs",
    "encoder",
    "decoder",
)
NAMED_HEADS = ("sequence_classification", "token_classification")  # whose classes have names
LOG = logging.getLogger("flaxformer_lite")


def classes_of(
    labels: Sequence[str] | int | None, num_labels: int | None, new_head: bool
) -> Sequence[str] | int | None:
    """Returns the classes of a new head, by name or number.

    Raises:
      ConfigError: `num_labels` contradicts `labels`, or is not a positive integer.
    """
    if num_labels is None:
        return labels
    if not new_head:
        raise ConfigError(
            f"num_labels={num_labels!r}: comes from config.json; with new_head=True it is that of a"
            " head that is made, as is labels=[...]."
        )
    if isinstance(num_labels, bool) or not isinstance(num_labels, int) or num_labels < 1:
        raise ConfigError(f"num_labels={num_labels!r}: must be a whole number, at least 1.")
    if labels is None:
        return num_labels
    count = labels if isinstance(labels, int) else len(labels)
    if count != num_labels:
        raise ConfigError(
            f"num_labels={num_labels}: labels={labels!r} are {count}; leave one of the two out."
        )
    return labels


def read_labels(folder: Path) -> list[str]:
    """Reads the names of a classifier's classes, in the order of its logits.

    Raises:
      ConfigError, WeightsError: there is no config.json, or its names are invalid.
    """
    published = read_config(folder)
    labels = hf_config.read_labels(published)
    if labels:
        return labels
    return [f"LABEL_{i}" for i in range(Fields(published).size("num_labels", 2))]


def check_overrides(overrides: Collection[str]) -> None:
    """Refuses overrides of fields that the weights decide.

    Raises:
      ConfigError: names the first of them.
    """
    unknown = sorted(set(overrides) - set(EXECUTION_FIELDS))
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: comes from config.json; only {', '.join(EXECUTION_FIELDS)} can be"
            " overridden."
        )


def open_published(
    folder: Path,
    head: str | None = None,
    *,
    source: str = "",
    family: str | None = None,
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
    adapter: Path | None = None,
    **overrides: object,
) -> tuple[nn.Module, dict]:
    """Opens published weights; each parameter is a `Stored`, which is read when it is used.

    Args:
      folder: a local directory.
      source: the name of the directory that the model remembers; the default is its path.
      new_head: whether the head may lack parameters, which are then left out.
      adapter: a local directory with an adapter for the model.
      head, family, labels, **overrides: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError: as `load_pretrained`.
    """
    check_overrides(overrides)
    opened_adapter = None
    if adapter is not None:
        from flaxformer_lite.pretrained import load_adapter

        opened_adapter = load_adapter.open_adapter(adapter)
    config_json = read_config(folder)
    if opened_adapter and head is None:
        module = hf_config.family_of(config_json, folder, family)
        head = opened_adapter.head(module.PUBLISHED.heads)
    module, cfg = hf_config.open_config(config_json, folder, head, family, **overrides)
    published = module.PUBLISHED
    published_labels = hf_config.read_labels(config_json) if new_head else []
    cfg, relabelled = with_labels(cfg, labels, published_labels)
    tensors = published.arrange(open_weights(folder))
    tensors = tensor_names.without_prefix(published, tensors)
    tensors = check_tensors.with_computed_biases(published, tensors)
    tensors = check_tensors.with_tied_tables(published, cfg, tensors)
    if opened_adapter:
        tensors = opened_adapter.replace(published, cfg, tensors)
        cfg = opened_adapter.fit(published, cfg)
    layers = max(cfg.encoder_layers, cfg.decoder_layers)
    if not cfg.share_layers and layers > len(tensors):  # before tracing
        raise WeightsError(
            f"{folder}: config.json has {layers} layers, but the weights are only {len(tensors)}"
            " tensors; one of the two is from another model."
        )
    cfg = check_tensors.untie_where_tables_differ(published, cfg, tensors)
    cfg = published.settle(cfg, {name: tensor.array for name, tensor in tensors.items()})
    # Before the shapes are compared: a quantized matrix and its scales are two tensors, of other
    # shapes.
    tensors = with_plain_forms(published.names(cfg), tensors)
    model = check_family(cfg)(cfg, source=source or str(folder))
    shapes = parameter_shapes(model)
    layouts = tensor_names.layouts(published, cfg, shapes_side_by_side(cfg, shapes))
    initialized = set()
    if new_head:
        for path, layout in layouts.items():
            if is_of_head(path) and not _has(tensors, layout):
                initialized.add(path)
    if relabelled:
        initialized |= per_class(model)
    check_tensors.check(published, cfg, folder, tensors, layouts, initialized)
    stored = {path: leaf for path, leaf in shapes.items() if path not in initialized}
    readers = {path: reader_of(layout, tensors) for path, layout in layouts.items()}
    if opened_adapter:
        cfg = dataclasses.replace(cfg, adapter=opened_adapter.config(published, cfg, shapes))
        readers |= opened_adapter.readers(published, cfg, shapes)
        model = model.clone(cfg=cfg)
        for path, leaf in parameter_shapes(model).items():
            if path not in shapes:
                stored[path] = leaf
    return model, stored_tree(cfg, stored, readers.__getitem__)


def is_of_head(path: str) -> bool:
    """Returns whether a parameter belongs to a head, not to the body that all heads share."""
    return path.split("/")[0] not in BODY


def with_labels(
    cfg: ModelConfig, labels: Sequence[str] | int | None, published: Sequence[str]
) -> tuple[ModelConfig, bool]:
    """Returns the config for these classes, and whether they differ from the weights' own."""
    if not labels or cfg.head not in NAMED_HEADS:
        return cfg, False
    count = labels if isinstance(labels, int) else len(labels)
    differ = count != cfg.num_labels
    if not isinstance(labels, int):
        same = [list(published)]
        unnamed = [f"LABEL_{i}" for i in range(count)]
        if list(published or unnamed) == unnamed:  # the weights do not name their classes
            same.append([str(i) for i in range(count)])
        differ = differ or list(labels) not in same
    return dataclasses.replace(cfg, num_labels=count), differ


def per_class(model: nn.Module) -> set[str]:
    """Returns the parameters whose shape depends on the number of classes."""
    larger = type(model)(dataclasses.replace(model.cfg, num_labels=model.cfg.num_labels + 1))
    shapes = parameter_shapes(model)
    others = parameter_shapes(larger)
    return {path for path, leaf in shapes.items() if leaf.shape != others[path].shape}


def _has(tensors: dict[str, Tensor], layout: TensorLayout) -> bool:
    # A head for another number of classes has the name but not the shape: it counts as missing.
    return layout.name in tensors and tensors[layout.name].shape == layout.file_shape


def with_new(model: nn.Module, stored: dict, seed: int) -> dict:
    """Adds the missing parameters, initialized with a seed, and logs their names."""
    flat = flatten_dict(stored, sep="/")
    shapes = parameter_shapes(model)
    missing = sorted(set(shapes) - set(flat))
    if not missing:
        return stored
    LOG.warning("new parameters: %s; train them before use.", ", ".join(missing))
    return _initialized(model, flat, missing, seed)


def with_adapter(
    model: nn.Module, stored: dict, adapter: AdapterConfig, seed: int
) -> tuple[nn.Module, dict]:
    """Adds a new adapter to a model, and its factors, initialized with a seed, to its parameters.

    Raises:
      ConfigError: the model has an adapter, or one of the targets matches no matrix.
    """
    if model.cfg.adapter is not None:
        raise ConfigError(
            f"adapter={adapter!r}: the model was trained with an adapter; convert it first, which"
            " merges that one (flaxformer_lite convert)."
        )
    model = model.clone(cfg=dataclasses.replace(model.cfg, adapter=adapter))
    shapes = parameter_shapes(model)
    adapter.check(shapes)
    flat = flatten_dict(stored, sep="/")
    return model, _initialized(model, flat, sorted(set(shapes) - set(flat)), seed)


def _initialized(model: nn.Module, flat: dict, missing: list[str], seed: int) -> dict:
    inputs = dummy_inputs(model.skeleton, model.cfg)

    @jax.jit
    def initial(key: jax.Array) -> dict[str, jax.Array]:
        params = flat_init(model, key, inputs)
        # Inside the jit, so that XLA drops the draws of all other parameters.
        return {path: params[path] for path in missing}

    return unflatten_dict(flat | initial(jax.random.key(seed)), sep="/")
