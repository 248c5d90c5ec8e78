"""The record that a checkpoint keeps of its run, and the check whether a config may continue it."""

import contextlib
import copy
import functools
import hashlib
import json
import platform
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict

import flaxformer_lite
from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.frozen_base import Base
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    allowed_plugins,
    fingerprint,
    from_config_dict,
    to_config_dict,
)
from flaxformer_lite.config.mixture import is_source_path
from flaxformer_lite.config.rules import MAY_CHANGE, REORDERS_SUMS, fields_with_mark
from flaxformer_lite.files.read import Json
from flaxformer_lite.training import optimizer

# fields that change only rounding, and all that may change between starts
REORDERING = fields_with_mark(ExperimentConfig, REORDERS_SUMS)
CHANGEABLE = (*fields_with_mark(ExperimentConfig, MAY_CHANGE), *REORDERING)
MOST_DIFFERENCES = 6  # most differences that an error lists


def meta(cfg: ExperimentConfig, data_fingerprint: str, step: int, base: Base | None = None) -> Json:
    """Builds the record of a checkpoint, which with the state determines all later steps."""
    base_digest = ""
    if base is not None:
        base_digest = base.digest
    return {
        "step": step,
        "data_position": step,  # number of batches read; the pipeline has no other state
        "seed": cfg.seed,
        "config": plain(cfg),
        "config_hash": fingerprint(cfg),
        "data_fingerprint": data_fingerprint,
        "base": base_digest,
        "versions": versions(),
    }


def plain(cfg: object) -> Json:
    """Returns the resolved config as plain JSON values."""
    return json.loads(json.dumps(to_config_dict(cfg).to_dict()))


def versions() -> dict[str, str]:
    """Returns the versions of all software that the numbers depend on."""
    by_library = {
        "flaxformer_lite": f"{flaxformer_lite.__version__}+{_sources()}",
        "python": platform.python_version(),
    }
    for library in (jax, flax, optax, np):
        by_library[library.__name__] = library.__version__
    return by_library


def check(
    stored: Json, cfg: ExperimentConfig, data_fingerprint: str, base: Base | None = None
) -> None:
    """Refuses to continue a run with a different config.

    `train.steps` may change as long as every step already taken has the same learning rate with
    both values, and `train.init_from` if `base` has weights from there.

    Raises:
      ConfigError: lists the fields that differ, then -> now, and the way out.
    """
    then = flatten_dict(_completed(stored["config"], allowed_plugins(cfg)), sep=".")
    now = flatten_dict(plain(cfg), sep=".")
    step = stored["step"]
    changed = []
    for field in sorted({**then, **now}):
        if then.get(field) != now.get(field) and not _may_change(field):
            changed.append(field)
    # A frozen base that is moved is known by its digests, which are compared once it is read.
    if "train.init_from" in changed and base is not None and base.source:
        changed.remove("train.init_from")
    if "train.steps" in changed and _same_rates(cfg, then["train.steps"], step):
        changed.remove("train.steps")
    lines = []
    for field in changed:
        line = f"{field}: {then.get(field, 'absent')} -> {now.get(field, 'absent')}"
        if field == "train.steps":
            line += f" (the {cfg.optimizer.schedule} schedule is a function of it)"
        lines.append(line)
    # Before 0.4, a hash of a teacher's weights followed.
    data_then = stored["data_fingerprint"].partition(" with ")[0]
    if not changed and data_then != data_fingerprint:
        then_and_now = f"{data_then} -> {data_fingerprint}"
        # The hash is also of the rules by which the package makes rows, such as a mixture's.
        lines = [
            f"text or tokenizer: {then_and_now} (or this version makes other rows of the same)"
        ]
    if lines:
        more = f" and {len(lines) - MOST_DIFFERENCES} more" if len(lines) > MOST_DIFFERENCES else ""
        raise ConfigError(
            f"this run was started with another config, and is at step {step}:"
            f" {'; '.join(lines[:MOST_DIFFERENCES])}{more}. Go back to the old value, or choose"
            " another --workdir."
        )


def _completed(config: Json, allowed: registry.Allowed) -> Json:
    """Adds to a stored config the defaults of newer fields, which keep what the run did.

    A checkpoint that names a plug-in that is not allowed is compared as it is.
    """
    with contextlib.suppress(ConfigError):
        known = workdir.complete_config(copy.deepcopy(config))
        return plain(from_config_dict(ExperimentConfig, known, allow_plugins=allowed))
    return config


def notices(stored: Json, cfg: ExperimentConfig) -> list[str]:
    """Lists changes that are allowed, but end bit-for-bit equality with the uninterrupted run."""
    then = flatten_dict(stored["config"], sep=".")
    now = flatten_dict(plain(cfg), sep=".")
    changed = [field for field in sorted(REORDERING) if then.get(field) != now[field]]
    old = stored["versions"]
    new = versions()
    changed += [name for name in new if old.get(name) != new[name]]
    lines = []
    if changed:
        lines.append(
            f"changed since the run began: {', '.join(changed)}; results will match only up to"
            " rounding."
        )
    if " with " in stored["data_fingerprint"]:
        lines.append(
            "an older version began this run, whose hash of the auxiliary model's weights is not"
            " compared."
        )
    return lines


def _may_change(field: str) -> bool:
    return field in CHANGEABLE or is_source_path(field)


@functools.cache
def _sources() -> str:
    """Hashes this package's code, as the version number does not change with every edit."""
    root = Path(flaxformer_lite.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _same_rates(cfg: ExperimentConfig, old_steps: int, taken: int) -> bool:
    steps = jnp.asarray(np.arange(taken))
    old = optimizer.schedule(cfg.optimizer, old_steps)(steps)
    new = optimizer.schedule(cfg.optimizer, cfg.train.steps)(steps)
    return bool((old == new).all())
