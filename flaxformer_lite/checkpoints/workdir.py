"""A training workdir as others read it: its config, its tokenizer, and its best or newest undamaged
parameters."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import arrays
from flaxformer_lite.checkpoints.digest import Leaves, describe
from flaxformer_lite.checkpoints.manager import Restored
from flaxformer_lite.checkpoints.record import CheckpointError, broken_leaf, first_line, read_record
from flaxformer_lite.checkpoints.store import committed
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    fingerprint,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.files.publish import new_directory, recover, write_file
from flaxformer_lite.files.read import parse_object, read_bytes, read_object
from flaxformer_lite.models import build_model
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError, address_of, is_url
from flaxformer_lite.text import tokenizer

TOKENIZERS = (tokenizer.HuggingFace.file, tokenizer.SentencePiece.file, tokenizer.Bytes.file)
PARAMS = "params/"  # of a state, the latter in training/average.py
BASELINE = "baseline.json"
LARGEST_BASELINE = 1 << 28  # bytes; a word in it has a tag, a token a count
AVERAGE = "opt_state/ema/"
CHANGED = (
    "is not what the run wrote, by the hash in config.json; the run's own command writes both anew."
)


class Run(NamedTuple):
    """A training run."""

    cfg: ExperimentConfig  # resolved
    step: int  # of the checkpoint
    model: Any  # the linen module
    params: dict  # numpy arrays
    # one for each better or newer checkpoint that cannot be read, and one where it is the best
    notices: list[str]


def is_workdir(folder: Path) -> bool:
    """Returns whether training wrote this folder, or what an address names, not save_pretrained."""
    file = folder / "config.json"
    try:
        content = Objects(str(folder)).read(file.name) if is_url(folder) else read_bytes(file)
        return {"hash", "config"} <= set(parse_object(content or b"", str(file)))
    except StorageError:
        raise
    except ConfigError:  # there is none, or it was cut
        return bool(newest_first(folder, "checkpoints"))


def write_inputs(folder: Path, cfg: ExperimentConfig, tokenizer: Any, data: str = "") -> None:
    """Writes the resolved config and the tokenizer with their hashes, so that the run can be read
    without its command.

    `data` is the fingerprint of what the run is trained on.
    """
    with new_directory(folder / "tokenizer", carry=lambda name: name not in TOKENIZERS) as made:
        tokenizer.save(made)
    config = to_config_dict(cfg).to_dict()
    inputs = {"hash": fingerprint(config), "tokenizer": _tokenizer_hash(folder / "tokenizer")}
    inputs |= {"data": data, "config": config}
    write_file(folder / "config.json", f"{json.dumps(inputs, indent=2)}\n".encode())


def read_config(folder: Path, *, allow_plugins: registry.Allowed = False) -> ExperimentConfig:
    """Reads the run's resolved config.

    Args:
      folder: the workdir.
      allow_plugins: which plug-ins outside the package it may name: none, all, or those of these
        names. They are code that is imported, and the folder may be a stranger's.

    Raises:
      PluginError: it names another plug-in, which was not imported.
      ConfigError: it was changed since, or another version wrote it.
    """
    values = _inputs(folder)["config"]
    if isinstance(values.get("train"), dict):  # a run begun before there was packing has none
        values["train"].setdefault("packing", False)
    where = f"{folder}/config.json"
    cfg = from_config_dict(ExperimentConfig, values, where, allow_plugins=allow_plugins)
    return dataclasses.replace(cfg, allow_plugins=allow_plugins is True)


def started_from(folder: Path) -> str:
    """Returns the directory that the run took its weights from, or ""."""
    train = _inputs(folder)["config"].get("train")
    source = train.get("init_from") if isinstance(train, dict) else ""
    return source if isinstance(source, str) else ""


def write_baseline(folder: Path, fitted: dict[str, Any]) -> None:
    """Writes what the objective's baseline learned from the training examples."""
    write_file(folder / BASELINE, f"{json.dumps(fitted)}\n".encode())


def read_baseline(folder: Path) -> dict[str, Any] | None:
    """Reads what `write_baseline` wrote; None if the run has not written it."""
    file = folder / BASELINE
    if not file.exists():
        return None
    return parse_object(read_bytes(file, limit=LARGEST_BASELINE), str(file))


def data_fingerprint(folder: Path) -> str:
    """Returns the fingerprint of the data that a run is trained on, or "" if it is not known."""
    return _inputs(folder).get("data") or ""


def read_run(
    folder: Path, *, companion: bool = False, allow_plugins: registry.Allowed = False
) -> Run:
    """Reads the model and parameters of a run, without optimizer state; does not disturb a run in
    progress.

    They are those of the best evaluation if the run keeps it (`train.best`), else those of the
    newest checkpoint, and averaged if it keeps the average (`optimizer.ema`).

    Args:
      folder: the workdir.
      companion: reads the second model that the run trained, such as ELECTRA's generator, in place
        of the first.
      allow_plugins: as in `read_config`.

    Raises:
      ConfigError: config.json was written by another version of the code, or there is no second
        model.
      CheckpointError: there is no checkpoint, or all are damaged.
    """
    cfg = read_config(folder, allow_plugins=allow_plugins)
    damaged = []
    second = cfg.objective.companion(cfg.model)
    if companion and (second is None or second.cfg is None):
        raise ConfigError(
            f"{folder}: {plugin_name(cfg.objective)} trained one model only; leave out the"
            " companion."
        )
    best = newest_first(folder, "best")
    every = newest_first(folder, "checkpoints")
    for path in [*best, *every]:
        step = int(path.name)
        is_best = path in best
        try:
            params, record = _params(path)
        except StorageError:
            raise
        except Exception as error:  # from tensorstore, orbax, json or the file system
            damaged.append(
                f"{'best ' * is_best}checkpoint of step {step} cannot be read ({first_line(error)})"
            )
            continue
        notices = [f"{what}; step {step} is used." for what in damaged]
        if is_best:
            newest = (
                f"; the newest checkpoint is step {every[0].name}"
                if every and every[0].name != path.name
                else ""
            )
            notices.append(
                f"step {step} is used, the best by {record['config']['train']['best']}{newest}."
            )
        if second is not None and second.cfg is not None:
            params = second.of(params) if companion else second.without(params)
        model = second.cfg if companion and second is not None else cfg.model
        return Run(cfg, step, build_model(model), params, notices)
    if damaged:
        raise CheckpointError(f"{folder}: {'; '.join(damaged)}; there is no other.")
    when = "the run writes one every train.checkpoint_every steps"
    raise CheckpointError(f"{folder}/checkpoints: no checkpoint yet; {when}.")


def read_state(folder: Path, target: Any, last: int) -> Restored:
    """Reads the newest undamaged train state of at most `last` steps without touching the run; step
    0 if there is none.

    Args:
      folder: the workdir.
      target: tree of ShapeDtypeStructs with shardings.
      last: the most steps that it may have.
    """
    notices: list[str] = []
    for path in newest_first(folder, "checkpoints"):
        if (step := int(path.name)) > last:
            continue
        try:
            record = read_record(path)
            return Restored(step, _read(path, target, record["leaves"]), record, notices)
        except StorageError:
            raise
        except Exception as error:  # from tensorstore, orbax, json or the file system
            notices.append(
                f"checkpoint of step {step} cannot be read ({first_line(error)}); an earlier one is"
                " used."
            )
    return Restored(0, None, {}, notices)


def newest_first(folder: Path, name: str) -> list[Any]:
    """Lists the checkpoints in a part of a workdir, as paths, or as objects where it is in a store,
    or a copy of one."""
    if url := address_of(folder):
        objects = Objects(f"{url}/{name}")
        return [objects.below(str(step)) for step in reversed(committed(objects.names()))]
    return sorted(
        (at for at in (folder / name).glob("[0-9]*") if at.name.isdigit()),
        key=lambda at: -int(at.name),
    )


def tokenizer_folder(folder: Path) -> Path:
    """Returns the folder where a run keeps its tokenizer; raises ConfigError if it is gone or was
    changed since."""
    recover(folder / "tokenizer")
    if not (folder / "tokenizer").is_dir():
        raise ConfigError(
            f"{folder}/tokenizer: missing; the run wrote it, and text cannot be encoded without it."
        )
    if _inputs(folder).get("tokenizer") not in (None, _tokenizer_hash(folder / "tokenizer")):
        raise ConfigError(f"{folder}/tokenizer: {CHANGED}")
    return folder / "tokenizer"


def _inputs(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    inputs = read_object(path, {"hash": str, "config": dict, "tokenizer": str, "data": str})
    if fingerprint(inputs.get("config") or {}) != inputs.get("hash"):
        raise ConfigError(f"{path}: {CHANGED}")
    return inputs


def _tokenizer_hash(folder: Path) -> str:
    files = [folder / name for name in TOKENIZERS if (folder / name).exists()]
    return hashlib.sha256(
        b"".join(read_bytes(file, limit=tokenizer.LARGEST) for file in files)
    ).hexdigest()[:16]


def _params(at: Path | Objects) -> tuple[dict, dict]:
    """Reads (parameters, record); in place of parameters whose average is kept, the average in
    their dtype."""
    record = read_record(at)
    leaves = record["leaves"]
    places = {path: path for path in leaves if path.startswith(PARAMS)}
    averages = {path: path.replace(PARAMS, AVERAGE, 1) for path in places}
    places |= {path: average for path, average in averages.items() if average in leaves}
    stored = {place: leaves[place] for place in places.values()}
    shapes = {
        place: jax.ShapeDtypeStruct(shape, dtype) for place, (dtype, shape, _) in stored.items()
    }
    flat = flatten_dict(_read(at, unflatten_dict(shapes, sep="/"), stored), sep="/")
    found = {path: flat[place].astype(leaves[path][0]) for path, place in places.items()}
    return unflatten_dict(found, sep="/")["params"], record


def _read(at: Path | Objects, target: Any, leaves: Leaves) -> Any:
    """Reads arrays like `arrays.read`; raises CheckpointError if they are not as described."""
    read = arrays.read(at, target)
    if broken := broken_leaf(leaves, describe(read)):
        raise CheckpointError(f"the content of {broken} does not match its digest")
    return read
