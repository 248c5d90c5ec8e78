"""Opens models and tokenizers from a directory of published weights or a training workdir."""

import argparse
import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import escape_controls
from flaxformer_lite.model_details import load_sentence_layers, load_tokenizer
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained.folder import check_exists
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.runtime.log import capture_logs
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

# flags that `load_pretrained` takes as they are
FLAGS = ("dtype", "family", "adapter", "base", "allow_plugins", "quantize", "matmul", "cache")


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
    family: str | None = None,
    allow_plugins: bool = False,
    **options: Any,
) -> Opened:
    """Opens a model, its parameters on the default device, and its tokenizer.

    An adapter is merged, but for a model that is held in few bits, where it stays beside it.

    Args:
      path: a directory or an address.
      head, family, allow_plugins, options: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError, CheckpointError: the directory cannot be used.
    """
    folder = folder_of(path)
    tokenizer = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    options |= {"family": family, "allow_plugins": allow_plugins}
    with print_warnings():
        loaded = load_pretrained(folder, head, **options)
        if "quantize" not in options:
            loaded = merge_adapter(*loaded)
        return Opened(*loaded, tokenizer, folder)


def load_named_layers(args: argparse.Namespace, folder: Path) -> SentenceLayers:
    """Loads the layers of a command's sentence model, cut to the vectors of --size."""
    with print_warnings():
        layers = load_sentence_layers(folder, allow_plugins=args.allow_plugins)
    size = vars(args).get("size")
    if size is None:
        return layers
    return layers.cut(size, "--size")


def open_named_model(
    args: argparse.Namespace, head: str | None = None, folder: Path | None = None
) -> Opened:
    """Opens the model that a command's --model names, with the command's other FLAGS.

    Args:
      args: the flags of the command.
      head: the head of the model; None is its config's.
      folder: where --model is on this machine, if that is known.
    """
    flags = vars(args)
    options = {name: flags[name] for name in FLAGS if flags.get(name)}
    return open_model(folder or args.model, head=head, **options)


def folder_of(path: str | Path) -> Path:
    """Returns the directory that a user names; for an address, a local copy of what is read.

    Raises:
      WeightsError: it does not exist.
    """
    folder = on_disk(path)
    check_exists(folder)
    return folder


def print_warnings() -> contextlib.AbstractContextManager[None]:
    """Prints each warning that the library logs within the block as one line."""
    return capture_logs(logging.WARNING, print_notice)


def print_notice(text: str) -> None:
    """Prints a line for the user on stderr."""
    print(f"notice: {escape_controls(text)}", file=sys.stderr)
