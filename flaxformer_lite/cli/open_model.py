"""Opens models and tokenizers from a directory of published weights or a training workdir."""

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import printable
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained.folder import check_exists
from flaxformer_lite.runtime.log import capture_logs
from flaxformer_lite.storage.stores import addressed
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer


class Opened(NamedTuple):
    """A model, its parameters and its tokenizer, and the folder on this machine they are from."""

    model: nn.Module
    params: dict
    tokenizer: PublishedTokenizer
    folder: Path

    @property
    def cfg(self) -> ModelConfig:
        return self.model.cfg


def open_model(
    path: str | Path,
    *,
    head: str | None = None,
    dtype: str = "float32",
    family: str | None = None,
    adapter: str | None = None,
    allow_plugins: bool = False,
    quantize: str | None = None,
    cache: str | None = None,
) -> Opened:
    """Opens a model, its parameters on the default device, and its tokenizer.

    An adapter is merged, but for a model that is held in few bits, where it stays beside it.

    Raises:
      ConfigError, WeightsError, CheckpointError: the directory cannot be used.
    """
    folder = folder_of(path)
    tokenizer = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    fields = {"quantize": quantize, "cache": cache}
    low_precision: dict[str, Any] = {name: value for name, value in fields.items() if value}
    with notices():
        loaded = load_pretrained(
            folder,
            head,
            dtype=dtype,
            family=family,
            adapter=adapter,
            allow_plugins=allow_plugins,
            **low_precision,
        )
        return Opened(*(loaded if quantize else merge_adapter(*loaded)), tokenizer, folder)


def folder_of(path: str | Path) -> Path:
    """Returns the directory that a user names; for an address, a local copy of what is read.

    Raises:
      WeightsError: it does not exist.
    """
    folder = on_disk(path)
    check_exists(folder)
    return folder


def check_vocabulary(opened: Opened, ids: list[int]) -> list[int]:
    """Returns the ids, after checking that they are in the model's vocabulary.

    Raises:
      ConfigError: an id is outside the vocabulary.
    """
    if ids and max(ids) >= opened.cfg.vocab_size:
        raise ConfigError(
            f"the tokenizer gives the id {max(ids)}, but the model's vocabulary ends at"
            f" {opened.cfg.vocab_size - 1}: they do not belong together."
        )
    return ids


def notices() -> contextlib.AbstractContextManager[None]:
    """Prints each warning that the library logs within the block as one line."""
    return capture_logs(logging.WARNING, notice)


def notice(text: str) -> None:
    """Prints a line for the user on stderr."""
    print(f"notice: {printable(addressed(text))}", file=sys.stderr)
