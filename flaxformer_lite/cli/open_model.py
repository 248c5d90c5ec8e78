"""Opening of models and tokenizers from a directory of published weights or a training workdir."""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.adapters.merge import merge_adapter
from flaxformer_lite.checkpoints import mirror
from flaxformer_lite.checkpoints.mirror import place_of
from flaxformer_lite.checkpoints.workdir import is_workdir
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import read_object
from flaxformer_lite.files.stores import is_url
from flaxformer_lite.pretrained.load import load_pretrained
from flaxformer_lite.pretrained.published_tokenizer import PublishedTokenizer
from flaxformer_lite.pretrained.tokenizer import load_tokenizer


class Opened(NamedTuple):
    model: Any
    params: dict
    tokenizer: PublishedTokenizer

    @property
    def cfg(self) -> ModelConfig:
        return self.model.cfg


def open_model(
    path: str, *, head: str | None = None, dtype: str = "float32", family: str | None = None, adapter: str | None = None
) -> Opened:
    """Opens a model, its parameters on the default device, and its tokenizer.

    Raises:
      ConfigError, WeightsError, CheckpointError: the directory cannot be used.
    """
    folder = folder_of(path)
    tokenizer = load_tokenizer(folder, family=family)
    with notices():
        loaded = load_pretrained(folder, head, dtype=dtype, family=family, adapter=adapter)
        return Opened(*merge_adapter(*loaded), tokenizer)


def folder_of(path: str) -> Path:
    """Returns the directory that a user names; of the workdir at an address, a copy of all but its checkpoints.

    Raises:
      ConfigError: it does not exist.
    """
    if is_url(path):
        return _copy_of(path)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{path}: no such directory; models are read from disk, never downloaded.")
    return folder


@functools.cache
def _copy_of(url: str) -> Path:
    if not is_workdir(place_of(url)):
        raise ConfigError(f"{url}: no run has written a config.json there; pass the --workdir of a run.")
    return mirror.fetched(url)


def check_vocabulary(opened: Opened, ids: list[int]) -> list[int]:
    """Returns the ids after checking that they are in the model's vocabulary.

    Raises:
      ConfigError: one of them is not.
    """
    if ids and max(ids) >= opened.cfg.vocab_size:
        raise ConfigError(
            f"the tokenizer gives the id {max(ids)}, but the model's vocabulary ends at {opened.cfg.vocab_size - 1}:"
            f" they do not belong together."
        )
    return ids


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; {} if there is no such file."""
    return read_object(path) if path.exists() else {}


@contextlib.contextmanager
def notices() -> Iterator[None]:
    """Prints each warning of the library within the block as one line."""
    log, handler = logging.getLogger("flaxformer_lite"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: notice(record.getMessage())  # type: ignore[method-assign]
    before = log.level, log.propagate
    log.propagate = False  # a library's handler of all loggers would print it again
    log.setLevel(logging.WARNING)  # the root's may be higher: train hushes orbax
    log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate = before[1]
        log.removeHandler(handler)


def notice(text: str) -> None:
    """Prints a line to the user on stderr."""
    print(f"notice: {text}", file=sys.stderr)
