"""Models and tokenizers by directory: published weights, or a training workdir."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.data import tokenizer as plain
from flaxformer_lite.pretrained.load import load_pretrained
from flaxformer_lite.pretrained.tokenizer import PublishedTokenizer, framed, load_tokenizer


class Opened(NamedTuple):
    model: Any
    params: dict
    tokenizer: PublishedTokenizer

    @property
    def cfg(self) -> ModelConfig:
        return self.model.cfg


def open_model(path: str, *, head: str | None = None, dtype: str = "float32") -> Opened:
    """A model, its parameters on the default device and its tokenizer.

    Raises:
      ConfigError, WeightsError, CheckpointError: what is wrong with the directory.
    """
    folder = folder_of(path)
    if not workdir.is_workdir(folder):
        tokenizer = load_tokenizer(folder)
        return Opened(*load_pretrained(folder, head, dtype=dtype), tokenizer)
    run = workdir.read_run(folder)
    for what in run.notices:
        notice(what)
    tokenizer = framed(plain.load(workdir.tokenizer_folder(folder)), run.model.skeleton)
    params = jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), run.params)
    return Opened(
        run.model.clone(cfg=dataclasses.replace(run.model.cfg, dtype=dtype, param_dtype=dtype)), params, tokenizer
    )


def folder_of(path: str) -> Path:
    """The directory that a user names.

    Raises:
      ConfigError: there is none.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{path}: no such directory; models are read from disk, none are fetched.")
    return folder


def check_vocabulary(opened: Opened, ids: list[int]) -> list[int]:
    """The ids, all of which the model knows.

    Raises:
      ConfigError: one that it does not.
    """
    if ids and max(ids) >= opened.cfg.vocab_size:
        raise ConfigError(
            f"the tokenizer gives the id {max(ids)}, and the model's vocabulary ends at {opened.cfg.vocab_size - 1}:"
            f" the two are not of one model."
        )
    return ids


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON ({error}).") from None
    return values if isinstance(values, dict) else {}


def notice(text: str) -> None:
    """A line for the user that is not the program's output."""
    print(f"notice: {text}", file=sys.stderr)
