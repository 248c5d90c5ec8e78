"""The files of a checkpoint that is older than tokenizer.json."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value, read_bytes
from flaxformer_lite.text.added_tokens import ROLES, Added, content_of, read_added

MODELS = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
LARGEST = 1 << 28  # bytes of a vocabulary


@dataclass(frozen=True)
class Kind:
    """The tokenizer of a family of checkpoints.

    Attributes:
      make: makes the tokenizer, without special tokens, of a folder.
      tokens: the spelling of special tokens by role, where the folder does not say.
      around: the special tokens around text A, and around A and B, by role; `lang` is that of the
        language.
      types: whether the second text and what follows it are of type 1.
      strips: roles whose tokens take the spaces around them, `lstrip` and `rstrip`.
      others: further special tokens.
      language: the language of texts where the folder does not say; "" for none.
    """

    make: Callable[["Folder"], Tokenizer]
    tokens: dict[str, str]
    around: tuple[str, str] = ("A", "A B")
    types: bool = False
    strips: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: Sequence[str] = ()
    language: str = ""


class Folder:
    """The files of a checkpoint.

    Attributes:
      path: the directory.
      config: of tokenizer_config.json and special_tokens_map.json.
      kind: how it is tokenized.
    """

    def __init__(self, path: Path, config: Json, kind: Kind):
        self.path = path
        self.config = config
        self.kind = kind

    def spelled(self, role: str) -> str:
        """Returns the spelling of a special token; "" where there is none."""
        return content_of(self._token(role)) or ""

    def _token(self, role: str) -> Any:
        token = self.config.get(f"{role}_token", self.kind.tokens.get(role))
        if token is not None and content_of(token) is None:
            raise ConfigError(
                f"tokenizer_config.json: {role}_token={quote_value(token)}: must be a text."
            )
        return token

    def flag(self, name: str, usual: bool | None) -> Any:
        """Returns a setting that is true or false.

        Raises:
          ConfigError: it is something else.
        """
        value = self.config.get(name, usual)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"tokenizer_config.json: {name}: must be true or false.")
        return value

    @functools.cached_property
    def sentencepiece(self) -> Any:
        """The sentencepiece model as it is stored.

        Its scores and its normalization are not shown by `sentencepiece` itself.

        Raises:
          ValueError, protobuf's DecodeError: it is damaged.
        """
        # protobuf, which grain and orbax bring, takes 25 ms; most folders have a tokenizer.json
        from sentencepiece import sentencepiece_model_pb2

        content = read_bytes(existing_files(self.path, MODELS)[0], limit=LARGEST)
        # protobuf makes the class as the module is imported
        read = sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]
        if not read.pieces:
            raise ValueError("no pieces in it")
        return read

    @functools.cached_property
    def added(self) -> list[Added]:
        """The tokens that the vocabulary may lack, in the order of their ids."""
        named = {f"{role}_token": self._token(role) for role in ROLES}
        return read_added(self.path, self.config | named, self.kind.strips, self.kind.others)


def existing_files(path: Path, names: tuple[str, ...]) -> list[Path]:
    """Lists the files of these names that exist."""
    return [path / name for name in names if (path / name).is_file()]
