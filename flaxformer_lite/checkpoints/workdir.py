"""Reads a training workdir: its config, and its best or newest parameters."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import arrays
from flaxformer_lite.checkpoints.digest import Leaves, describe_leaves
from flaxformer_lite.checkpoints.frozen_base import FOLDER, Base, read_base
from flaxformer_lite.checkpoints.record import (
    FILE,
    CheckpointError,
    Restored,
    UnreadableError,
    broken_leaf,
    committed_steps,
    first_line,
    read_record,
    tell_unreadable,
)
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    fingerprint,
    from_config_dict,
    plugin_name,
)
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import Json, parse_object, read_bytes, read_object
from flaxformer_lite.models import build_model
from flaxformer_lite.storage.objects import Objects, objects_at
from flaxformer_lite.storage.stores import StorageError, address_of
from flaxformer_lite.types import Tree

PARAMS = "params/"  # paths in a train state
AVERAGE = "opt_state/ema/"  # as training/average.py names it
BASELINE = "baseline.json"
LARGEST_BASELINE = 1 << 28  # bytes; it may have a tag per word, or a count per token
CHANGED = (
    "is not what the run wrote, by the hash in config.json; the run's own command writes both anew."
)


class Run(NamedTuple):
    """A training run."""

    cfg: ExperimentConfig  # resolved
    step: int  # of the checkpoint
    model: nn.Module
    params: dict  # numpy arrays, without those of `base`
    base: Base | None  # frozen weights that are read elsewhere
    # One per better or newer checkpoint that cannot be read, and one if this is the best.
    notices: list[str]


def is_workdir(folder: Path) -> bool:
    """Returns whether training, not save_pretrained, wrote this folder or address."""
    file = folder / "config.json"
    try:
        store = objects_at(folder)
        if store:
            content = store.read(file.name)
        else:
            content = read_bytes(file)
        return {"hash", "config"} <= set(parse_object(content or b"", str(file)))
    except StorageError:
        raise
    except ConfigError:  # missing, or truncated
        steps = newest_first(folder, "checkpoints")  # other programs name folders so, too
        return any(isinstance(step, Objects) or (step / FILE).is_file() for step in steps)


def read_config(folder: Path, *, allow_plugins: registry.Allowed = False) -> ExperimentConfig:
    """Reads the run's resolved config.

    Args:
      folder: the workdir.
      allow_plugins: which plug-ins outside the package the config may name: False for none, True
        for all, or their names. Importing them runs their code, so the folder must be trusted.

    Raises:
      PluginError: the config names a plug-in that is not allowed.
      ConfigError: the config was changed, or written by another version.
    """
    values = complete_config(read_inputs(folder)["config"])
    where = f"{folder}/config.json"
    cfg = from_config_dict(ExperimentConfig, values, where, allow_plugins=allow_plugins)
    return dataclasses.replace(cfg, allow_plugins=allow_plugins is True)


def complete_config(values: Json) -> Json:
    """Adds to a run's config the fields that older versions lacked, with what they then did."""
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("tokenizer"), dict):
        data["tokenizer"].setdefault("frame", "end")
    if isinstance(values.get("train"), dict):
        values["train"].setdefault("packing", False)
    return values


def started_from(folder: Path) -> str:
    """Returns the directory that the run took its weights from, or ""."""
    train = read_inputs(folder)["config"].get("train")
    source = train.get("init_from") if isinstance(train, dict) else ""
    return source if isinstance(source, str) else ""


def write_baseline(folder: Path, fitted: Json, held_out: tuple[str, float] | None) -> None:
    """Writes what the objective's baseline learned from the training examples.

    Args:
      folder: the workdir.
      fitted: what `fit_baseline` returned.
      held_out: the baseline's name and headline value on the held-out examples, or None.
    """
    if held_out is not None and not math.isfinite(held_out[1]):
        held_out = None
    written = {"fitted": fitted, "held_out": held_out}
    write_file(folder / BASELINE, f"{json.dumps(written)}\n".encode())


def read_baseline(folder: Path) -> Json | None:
    """Reads `fitted` of `write_baseline`; None if the run has not written it."""
    written = _read_baseline(folder)
    # Earlier versions wrote it alone.
    return written.get("fitted", written) if written is not None else None


def read_baseline_score(folder: Path) -> tuple[str, float] | None:
    """Reads `held_out` of `write_baseline`; None if the run has not written it."""
    held_out = (_read_baseline(folder) or {}).get("held_out")
    if not held_out:
        return None
    name, value = held_out
    return str(name), float(value)


def _read_baseline(folder: Path) -> Json | None:
    file = folder / BASELINE
    if not file.exists():
        return None
    return parse_object(read_bytes(file, limit=LARGEST_BASELINE), str(file))


def data_fingerprint(folder: Path) -> str:
    """Returns the fingerprint of the data that a run is trained on, or "" if it is unknown."""
    return read_inputs(folder).get("data") or ""


def read_run(
    folder: Path, *, auxiliary: bool = False, allow_plugins: registry.Allowed = False
) -> Run:
    """Reads the model and the parameters of a run, which may still be going.

    The parameters are those of the best evaluation if the run keeps it (`train.best`), else those
    of the newest checkpoint; their moving average if the run keeps it (`optimizer.ema`).

    Args:
      folder: the workdir.
      auxiliary: whether to read the second model that the run trained, such as ELECTRA's generator,
        instead of the first.
      allow_plugins: as in `read_config`.

    Raises:
      ConfigError: config.json was written by another version of the code, or there is no second
        model.
      UnreadableError: the system does not let this process read a checkpoint.
      CheckpointError: there is no checkpoint, or all are damaged.
    """
    cfg = read_config(folder, allow_plugins=allow_plugins)
    damaged = []
    second = cfg.objective.auxiliary_model(cfg.model)
    if auxiliary and (second is None or second.cfg is None):
        raise ConfigError(
            f"{folder}: {plugin_name(cfg.objective)} trained one model only; leave out the"
            " auxiliary model."
        )
    best = newest_first(folder, "best")
    every = newest_first(folder, "checkpoints")
    for path in [*best, *every]:
        step = int(path.name)
        is_best = path in best
        try:
            params, record = _params(path)
        except (StorageError, UnreadableError):
            raise
        except Exception as error:  # from tensorstore, orbax, json or the file system
            what = "best checkpoint" if is_best else "checkpoint"
            damaged.append(f"{what} of step {step} cannot be read ({first_line(error)})")
            continue
        notices = [f"{what}; step {step} is used." for what in damaged]
        if is_best:
            metric = record["config"]["train"]["best"]
            line = f"step {step} is used, the best by {metric}"
            if every and every[0].name != path.name:
                line += f"; the newest checkpoint is step {every[0].name}"
            notices.append(f"{line}.")
        model = cfg.model
        if second is not None and second.cfg is not None and auxiliary:
            model = second.cfg
            params = second.of(params)
        elif second is not None:
            params = second.trained(params)
        base = read_base(folder, record.get("base", ""))
        if base is not None and not base.source:  # the weights of a second model alone
            base = None
        if base is not None and base.kept == "copy":
            params = _join(params, _copied(folder, base))
            base = None
        return Run(cfg, step, build_model(model), params, base, notices)
    if damaged:
        raise CheckpointError(f"{folder}: {'; '.join(damaged)}; there is no other.")
    when = "the run writes one every train.checkpoint_every steps"
    raise CheckpointError(f"{folder}/checkpoints: no checkpoint yet; {when}.")


def read_state(folder: Path, choose_target: Callable[[Json], Any], last: int) -> Restored:
    """Reads the newest undamaged train state of at most `last` steps; changes nothing.

    Args:
      folder: the workdir.
      choose_target: returns the tree of ShapeDtypeStructs with shardings to read, given the record
        of a checkpoint.
      last: the largest step to read.

    Returns:
      The train state, or step 0 without a state if there is none.
    """
    notices: list[str] = []
    for path in newest_first(folder, "checkpoints"):
        step = int(path.name)
        if step > last:
            continue
        try:
            record = read_record(path)
            state = _read(path, choose_target(record), record["leaves"])
            return Restored(step, state, record, notices)
        except (StorageError, UnreadableError):
            raise
        except Exception as error:  # from tensorstore, orbax, json or the file system
            notices.append(
                f"checkpoint of step {step} cannot be read ({first_line(error)}); an earlier one is"
                " used."
            )
    return Restored(0, None, {}, notices)


def newest_first(folder: Path, name: str) -> list[Path] | list[Objects]:
    """Lists the checkpoints in the folder `name` of a workdir, the newest first.

    Returns:
      Paths; if the workdir is in a store, or is a copy of one that is, `Objects`.
    """
    url = address_of(folder)
    if url:
        objects = Objects(f"{url}/{name}")
        return [objects.below(str(step)) for step in reversed(committed_steps(objects.names()))]
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), tell_unreadable(folder / name):
        names = os.listdir(folder / name)
    steps = sorted((step for step in names if step.isdigit()), key=int, reverse=True)
    return [folder / name / step for step in steps]


def read_newest_base(folder: Path) -> Base | None:
    """Reads base.json as the newest undamaged checkpoint names it; None if it names none."""
    for path in newest_first(folder, "checkpoints"):
        try:
            record = read_record(path)
        except (StorageError, UnreadableError):
            raise
        except Exception:  # from json or the file system; an earlier one names the same
            continue
        return read_base(folder, record.get("base", ""))
    return None


def base_copy(folder: Path) -> Path | Objects:
    """Returns where a workdir keeps the copy of its frozen weights, in the form of a checkpoint."""
    for path in newest_first(folder, FOLDER):
        return path
    raise CheckpointError(
        f"{folder}/{FOLDER}: missing; it holds the frozen weights of the run. Put it back, or train"
        " anew in another --workdir."
    )


@contextlib.contextmanager
def tell_damaged_copy(folder: Path) -> Iterator[None]:
    """Raises CheckpointError for what is wrong with a workdir's copy of its frozen weights."""
    try:
        yield
    except (StorageError, UnreadableError):
        raise
    except Exception as error:  # from tensorstore, orbax, json or the file system
        raise CheckpointError(
            f"{folder}/{FOLDER}: cannot be read ({first_line(error)}); it holds the frozen weights"
            " of the run. Put back what the run wrote, or train anew in another --workdir."
        ) from error


def read_inputs(folder: Path) -> Json:
    """Reads a run's config.json: its config, and the hashes of its config, tokenizer and data.

    Raises:
      ConfigError: it was changed since the run wrote it.
    """
    path = folder / "config.json"
    inputs = read_object(path, {"hash": str, "config": dict, "tokenizer": str, "data": str})
    if fingerprint(inputs.get("config") or {}) != inputs.get("hash"):
        raise ConfigError(f"{path}: {CHANGED}")
    return inputs


def _copied(folder: Path, base: Base) -> dict:
    """Reads the copy of the frozen weights that a workdir keeps."""
    copy = base_copy(folder)
    with tell_damaged_copy(folder):
        params, record = _params(copy)
    leaves = record["leaves"].items()
    base.check({path.removeprefix(PARAMS): leaf for path, leaf in leaves}, f"{folder}/{FOLDER}")
    return params


def _join(params: dict, others: dict) -> dict:
    flat = flatten_dict(params, sep="/") | flatten_dict(others, sep="/")
    return unflatten_dict(flat, sep="/")


def _params(at: Path | Objects) -> tuple[dict, dict]:
    """Reads (parameters, record); the average of parameters where it is kept, in their dtype."""
    record = read_record(at)
    leaves = record["leaves"]
    places = {}  # where in the state to read each parameter
    for path in leaves:
        if path.startswith(PARAMS):
            average = path.replace(PARAMS, AVERAGE, 1)
            places[path] = average if average in leaves else path
    stored = {place: leaves[place] for place in places.values()}
    shapes = {}
    for place, (dtype, shape, _) in stored.items():
        shapes[place] = jax.ShapeDtypeStruct(shape, dtype)
    flat = flatten_dict(_read(at, unflatten_dict(shapes, sep="/"), stored), sep="/")
    params = {path: flat[place].astype(leaves[path][0]) for path, place in places.items()}
    return unflatten_dict(params, sep="/")["params"], record


def _read(at: Path | Objects, target: Tree, leaves: Leaves) -> Tree:
    """Reads arrays like `arrays.read`; raises CheckpointError if they differ from `leaves`."""
    read = arrays.read(at, target)
    broken = broken_leaf(leaves, describe_leaves(read))
    if broken:
        raise CheckpointError(f"the content of {broken} does not match its digest")
    return read
