"""Finds out what a path of a model is: an address, a workdir of a run, or published weights.

An address becomes a folder on this machine here, once, where a command or a function for users
takes it; everything below gets the folder. Code for stores and workdirs is imported only when it is
needed.
"""

import os
from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import read_object
from flaxformer_lite.storage import hub
from flaxformer_lite.storage.stores import is_url


def check_path(path: object) -> None:
    """Refuses what names no directory."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"path is {type(path).__name__}: must be the name of a directory, or an address in a"
            " store, such as 'path/to/gpt2'."
        )


def on_disk(path: str | Path, *, weights: bool = True) -> Path:
    """Returns a model's directory on this machine; for an address, a copy of what is read.

    Args:
      path: a directory of published weights, a workdir, or an address.
      weights: whether the weights are needed, or only the files beside them.

    Raises:
      ConfigError: it is no path; or the address holds nothing, or its store cannot be used.
    """
    check_path(path)
    if not is_address(path):
        return expand_home(path)
    from flaxformer_lite.checkpoints import resolve_path

    return resolve_path.fetch_model(str(path), weights=weights)


def is_address(path: object) -> bool:
    """Returns whether a path is an address in a store or on the Hub."""
    return is_url(path) or hub.is_hub(path)


def fixed_address(path: str) -> str:
    """Returns a path that names the same model from any folder: absolute, or of the Hub's commit.

    Args:
      path: as `on_disk` takes it, which has read it.
    """
    if hub.is_hub(path):
        return f"hf://{hub.name_of(path)}@{on_disk(path, weights=False).name}"
    if is_url(path):
        return path
    return str(expand_home(path).resolve())


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


def find_run_config(
    folder: Path, *, allow_plugins: registry.Allowed = False
) -> ExperimentConfig | None:
    """Reads the resolved config of the run that wrote a folder; None for published weights.

    Args:
      folder: a folder on this machine.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: a run wrote it, and its config cannot be read.
    """
    if not is_workdir(folder):
        return None
    from flaxformer_lite.checkpoints import workdir

    return workdir.read_config(folder, allow_plugins=allow_plugins)
