"""Tokenizers of folders that are older than tokenizer.json, by plug-ins that read their files.

A plug-in of the kind `tokenizer_files` has `READ`, the names of the files that it reads, and the
functions `make_tokenizer`, `read_numbered` and `express_pieces`, which return what those below do
for its folders.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from flaxformer_lite import registry
from flaxformer_lite.files.read import Json

if TYPE_CHECKING:
    from flaxformer_lite.text.published_tokenizer import PublishedTokenizer


class Made(NamedTuple):
    """A tokenizer.json's text, and the spelling of its special tokens by role."""

    definition: str
    tokens: dict[str, str]


def make_tokenizer(path: Path) -> Made | None:
    """Makes the tokenizer.json of a directory that has none.

    Returns:
      None where the directory lacks the files of its model, or the model is another.

    Raises:
      ConfigError: a file is damaged, or says what cannot be.
    """
    made = (plugin.make_tokenizer(path) for plugin in _plugins())
    return next(filter(None, made), None)


def read_numbered(
    folder: Path, kind: str | None, config: Json, template: str
) -> "PublishedTokenizer | None":
    """Reads a tokenizer with a vocab.json that no tokenizer.json can express.

    Args:
      folder: the directory.
      kind: the model_type of its config.json.
      config: of tokenizer_config.json and special_tokens_map.json.
      template: of conversations.

    Returns:
      None where the directory has no such files.
    """
    read = (plugin.read_numbered(folder, kind, config, template) for plugin in _plugins())
    return next(filter(None, read), None)


def express_pieces(definition: bytes) -> str:
    """Returns a tokenizer.json that encodes as a sentencepiece model does, with T5's sentinels.

    Args:
      definition: the content of the model's file.
    """
    return next(plugin.express_pieces(definition) for plugin in _plugins())


def list_files() -> list[str]:
    """Returns the names of all files that are read of a directory."""
    return list(itertools.chain.from_iterable(plugin.READ for plugin in _plugins()))


def _plugins() -> Iterator[ModuleType]:
    for name in registry.available("tokenizer_files"):
        yield registry.resolve("tokenizer_files", name)
