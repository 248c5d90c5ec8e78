"""The files of a checkpoint that is older than tokenizer.json."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value, read_bytes
from flaxformer_lite.text.added_tokens import ROLES, Added, content_of, read_added

MODELS = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
MAX_VOCABULARY_BYTES = 1 << 28  # bytes of a vocabulary


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
      of_model: whether the sentencepiece model names its special tokens, in a folder that does not.
      raw: whether tokens with a stated id are found in a text before it is normalized, if the
        sentencepiece model puts a space before texts.
    """

    make: Callable[["Folder"], Tokenizer]
    tokens: dict[str, str]
    around: tuple[str, str] = ("A", "A B")
    types: bool = False
    strips: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: Sequence[str] = ()
    language: str = ""
    of_model: bool = False
    raw: bool = False


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
        token = self.config.get(f"{role}_token", self._usual.get(role))
        if token is not None and content_of(token) is None:
            raise ConfigError(
                f"tokenizer_config.json: {role}_token={quote_value(token)}: must be a text."
            )
        return token

    @functools.cached_property
    def _usual(self) -> Mapping[str, str]:
        """The spelling of special tokens by role, where the folder does not say.

        It is the class's; of a folder that names no class, the model's own where that lacks it.
        """
        if self.config.get("tokenizer_class") or not self.kind.of_model:
            return self.kind.tokens
        pieces = [piece.piece for piece in self.sentencepiece.pieces]
        usual = {}
        for role, token in self.kind.tokens.items():
            index = getattr(self.sentencepiece.trainer_spec, f"{role}_id", -1)
            if token in pieces:
                usual[role] = token
            elif index >= 0:
                usual[role] = pieces[index]
        return usual

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
        return parse_model(
            read_bytes(existing_files(self.path, MODELS)[0], limit=MAX_VOCABULARY_BYTES)
        )

    @functools.cached_property
    def added(self) -> list[Added]:
        """The tokens that the vocabulary may lack, in the order of their ids."""
        named = {f"{role}_token": self._token(role) for role in ROLES}
        added = read_added(self.path, self.config | named, self.kind.strips, self.kind.others)
        if self.kind.raw and self.sentencepiece.normalizer_spec.add_dummy_prefix:
            added = [_without_normalization(each) for each in added]
        return added


def parse_model(definition: bytes) -> Any:
    """Reads the ModelProto of a sentencepiece model.

    Raises:
      ValueError, protobuf's DecodeError: it is damaged.
    """
    # protobuf, which grain and orbax bring, takes 25 ms; most folders have a tokenizer.json
    from sentencepiece import sentencepiece_model_pb2

    # protobuf makes the class as the module is imported
    read = sentencepiece_model_pb2.ModelProto.FromString(definition)  # type: ignore[attr-defined]
    if not read.pieces:
        raise ValueError("no pieces in it")
    return read


def _without_normalization(added: Added) -> Added:
    token = added.token
    if added.stated is None:
        return added
    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "special")}
    return added._replace(token=AddedToken(token.content, normalized=False, **flags))


def existing_files(path: Path, names: tuple[str, ...]) -> list[Path]:
    """Lists the files of these names that exist."""
    return [path / name for name in names if (path / name).is_file()]
