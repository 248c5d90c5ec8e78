"""Initialization of a run with the weights of a directory."""

import functools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError, ExperimentConfig, ModelConfig, allowed_plugins
from flaxformer_lite.config.parts import Part
from flaxformer_lite.model_details import load_labels
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.adapters.merge import initial_factors
from flaxformer_lite.open_model import open_start
from flaxformer_lite.pretrained.grow_tables import grow_vocabulary
from flaxformer_lite.pretrained.layouts import Slices
from flaxformer_lite.pretrained.lazy_params import Stored
from flaxformer_lite.pretrained.load import is_of_head
from flaxformer_lite.pretrained.quantized_params import with_scheme
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.tensor_names import stack_sizes
from flaxformer_lite.runs.start.adopt import differing_fields, format_flags
from flaxformer_lite.storage.stores import StorageError
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Shaped

LOG = logging.getLogger("flaxformer_lite")


class PublishedState(NamedTuple):
    """The parameters of a directory.

    Attributes:
      paths: of the parameters that it has.
      unchanged: of those that the run has as they are there, and never changes.
      replace_params: reads them into an initial state, whose own may be None.
    """

    paths: Collection[str]
    unchanged: frozenset[str]
    replace_params: Callable[[TrainState], TrainState]


def init_from_pretrained(program: Program, folder: str) -> PublishedState:
    """Opens the parameters of a directory that `load_pretrained` reads.

    Each device reads only its own part; the optimizer state is fresh.

    Raises:
      ConfigError: there are no such weights, or they belong to a different model; names the fields
        that differ.
      CheckpointError: a workdir has no undamaged checkpoint.
    """
    cfg = program.cfg.model
    try:
        model, opened = open_start(program.cfg, folder, allowed_plugins(program.cfg))
    except (ConfigError, WeightsError) as error:
        raise ConfigError(f"train.init_from: {error}") from None
    grown = (model, opened)
    if program.cfg.data.tokenizer.add and cfg.vocab_size > model.cfg.vocab_size:
        grown = grow_vocabulary(model, opened, cfg.vocab_size)
    _check_same_model(folder, grown[0].cfg, cfg)
    try:
        _, stored = with_scheme(*grown, cfg.quantize)
        _, original = with_scheme(model, opened, cfg.quantize)
    except ConfigError as error:
        raise ConfigError(f"train.init_from={folder}: {error}") from None
    needed = flatten_dict(program.models.trained_params(program.target.params), sep="/")
    stored = _with_copies(cfg, stored, needed)
    published = flatten_dict(stored, sep="/")
    fresh = _new_of_head(program.cfg, folder, set(needed) - set(published))
    if fresh:
        LOG.info("new: %s; all others are from %s", ", ".join(sorted(fresh)), folder)

    def warm_started(state: TrainState) -> TrainState:
        target = flatten_dict(program.target.params)
        params = flatten_dict(state.params)
        for name, leaf in published.items():
            path = tuple(name.split("/"))
            goal = target[path]
            params[path] = jax.make_array_from_callback(goal.shape, goal.sharding, leaf.read)
        # After the weights are in: some adapters begin with factors that are computed from them.
        if cfg.adapter and model.cfg.adapter is None:
            begin = functools.partial(initial_factors, cfg.adapter)
            shardings = {path: target[path].sharding for path in jax.eval_shape(begin, params)}
            if shardings:
                params |= jax.jit(begin, out_shardings=shardings)(params)
        shardings = jax.tree.map(lambda x: x.sharding, program.target.params)
        return state.replace(params=program.models.split_offsets(unflatten_dict(params), shardings))

    unchanged = _unchanged(program, flatten_dict(original, sep="/"), published)
    return PublishedState(published.keys(), unchanged, warm_started)


def _unchanged(
    program: Program, original: Mapping[str, Stored], published: Mapping[str, Stored]
) -> frozenset[str]:
    """Returns the paths of frozen parameters that are those of the directory.

    A table that grew and copies for experts are not.
    """
    freeze = program.cfg.optimizer.freeze
    auxiliary = program.models.auxiliary
    # A run holds offsets in their place; and a second model is read with what it shares.
    if auxiliary is not None and (auxiliary.offset or auxiliary.shared):
        return frozenset()
    same = set()
    for path, leaf in published.items():
        is_original = path in original and original[path].shape == leaf.shape
        if is_original and _matches(path, freeze):
            same.add(path)
    return frozenset(same)


def _check_same_model(folder: str, stored: ModelConfig, cfg: ModelConfig) -> None:
    wrong = differing_fields(stored, cfg)
    if wrong:
        clauses = []
        for name, (published, configured) in wrong.items():
            clauses.append(f"its {name} is {published!r}, the config's {configured!r}")
        listed = "; ".join(clauses)
        raise ConfigError(f"train.init_from={folder}: {listed}; set {format_flags(stored, wrong)}.")
    if stored.adapter not in (None, cfg.adapter):
        which = "another" if cfg.adapter else "none"
        raise ConfigError(
            f"train.init_from={folder}: was trained with an adapter, and this run has {which};"
            " merge it first (flaxformer_lite convert), or set"
            f" {format_flags(stored, ['adapter'])}."
        )


def _new_of_head(cfg: ExperimentConfig, folder: str, missing: set[str]) -> set[str]:
    """Returns the paths that stay random because the objective adds a head; refuses others."""
    fresh = set[str]()
    if cfg.objective.new_head:
        fresh = set(filter(is_of_head, missing))
    _check_added(folder, cfg.model, missing - fresh)
    frozen = sorted(path for path in fresh if _matches(path, cfg.optimizer.freeze))
    if frozen:
        field = "model.adapter.trained" if cfg.model.adapter else "not optimizer.freeze"
        raise ConfigError(
            f"train.init_from={folder}: has no {frozen[0]}, so it is initialized at random, and"
            f" would be frozen; let {field} match it."
        )
    return fresh


def known_labels(cfg: ExperimentConfig) -> tuple[str, ...]:
    """Returns the names of the classes that the starting weights were trained for.

    () if they have none.
    """
    folder = cfg.train.init_from
    if not folder or not cfg.objective.new_head:
        return ()
    try:
        if not on_disk(folder, weights=False).is_dir():
            return ()
    except StorageError:  # like a missing directory: a run with a checkpoint needs none
        return ()
    named = tuple(load_labels(folder, allow_plugins=allowed_plugins(cfg)))
    if all(name == f"LABEL_{i}" for i, name in enumerate(named)):
        return ()
    return named


def _parts(cfg: ModelConfig) -> list[Part]:
    """Returns the parts of all kinds of layer."""
    parts: list[Part] = []
    for side in ("encoder", "decoder"):
        if getattr(cfg, f"{side}_layers"):
            for layer in build_layers.stack(cfg, side).pattern:
                parts += layer.parts.values()
    return parts


def _with_copies(cfg: ModelConfig, stored: dict, needed: Mapping[str, Shaped]) -> dict:
    """Adds the parameters that repeat others along an axis, such as experts'."""
    flat = flatten_dict(stored, sep="/")
    copies = {}
    used = set[str]()
    for path in set(needed) - set(flat):
        sources = {part.copied_from(path) for part in _parts(cfg)}
        for source in sources & set(flat):
            shape = needed[path].shape
            axis = len(stack_sizes(cfg, path, shape)) - 1
            if shape[:axis] + shape[axis + 1 :] == flat[source].shape:
                copies[path] = _repeated(flat[source], axis, shape)
                used |= sources
    kept = {path: leaf for path, leaf in flat.items() if path not in used}
    return unflatten_dict(kept | copies, sep="/")


def _repeated(leaf: Stored, axis: int, shape: tuple[int, ...]) -> Stored:
    """Repeats a stored parameter along a new axis."""

    def read(index: Slices) -> np.ndarray:
        part = leaf.read(index[:axis] + index[axis + 1 :])
        count = len(range(shape[axis])[index[axis]])
        return np.repeat(np.expand_dims(part, axis), count, axis=axis)

    return Stored(shape, leaf.dtype, read)


def _check_added(folder: str, cfg: ModelConfig, missing: set[str]) -> None:
    """Checks that only parameters of the config's plug-ins are missing from the weights."""
    added = [pattern for part in _parts(cfg) for pattern in part.added]
    if cfg.adapter:
        added += [rf"/{name}$" for name in cfg.adapter.factors]
    lacking = sorted(path for path in missing if not _matches(path, added))
    if lacking:
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise ConfigError(
            f"train.init_from={folder}: has no {lacking[0]}{more}, and nothing is made in its"
            " place."
        )


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
