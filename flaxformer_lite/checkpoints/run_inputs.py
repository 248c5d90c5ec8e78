"""Writes what a run is made of into its workdir, config and tokenizer, and finds the tokenizer."""

import hashlib
import json
from pathlib import Path
from typing import Protocol

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, ExperimentConfig, fingerprint, to_config_dict
from flaxformer_lite.files.publish import new_directory, recover_directory, write_file
from flaxformer_lite.files.read import read_bytes
from flaxformer_lite.text import saved_files


class Savable(Protocol):
    """A tokenizer, which writes its file into a folder."""

    def save(self, folder: Path, /) -> None: ...


def write_inputs(folder: Path, cfg: ExperimentConfig, tokenizer: Savable, data: str = "") -> None:
    """Writes the resolved config, the tokenizer and their hashes, from which the run can be read.

    Args:
      folder: the workdir.
      cfg: the resolved config.
      tokenizer: has `save(folder)`.
      data: the fingerprint of the data that the run is trained on.
    """
    with new_directory(
        folder / "tokenizer", carry=lambda name: name not in saved_files.ALL
    ) as made:
        tokenizer.save(made)
    config = to_config_dict(cfg).to_dict()
    inputs = {"hash": fingerprint(config), "tokenizer": _tokenizer_hash(folder / "tokenizer")}
    inputs |= {"data": data, "config": config}
    write_file(folder / "config.json", f"{json.dumps(inputs, indent=2)}\n".encode())


def tokenizer_folder(folder: Path) -> Path:
    """Returns the folder where a run keeps its tokenizer.

    Raises:
      ConfigError: the tokenizer is missing, or was changed since the run wrote it.
    """
    recover_directory(folder / "tokenizer")
    if not (folder / "tokenizer").is_dir():
        raise ConfigError(
            f"{folder}/tokenizer: missing; the run wrote it, and text cannot be encoded without it."
        )
    recorded = workdir.read_inputs(folder).get("tokenizer")
    if recorded not in (None, _tokenizer_hash(folder / "tokenizer")):
        raise ConfigError(f"{folder}/tokenizer: {workdir.CHANGED}")
    return folder / "tokenizer"


def _tokenizer_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in saved_files.ALL:
        if (folder / name).exists():
            digest.update(read_bytes(folder / name, limit=saved_files.MAX_TOKENIZER_BYTES))
    return digest.hexdigest()[:16]
