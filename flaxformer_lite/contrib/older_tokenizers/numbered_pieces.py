"""Tokenizers whose ids come from a separate file, vocab.json."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import ClassVar

import sentencepiece

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, read_bytes, read_object
from flaxformer_lite.text import token_text
from flaxformer_lite.text.added_tokens import read_added
from flaxformer_lite.text.saved_files import MAX_TOKENIZER_BYTES
from flaxformer_lite.text.tokenizer import Tokenizer

VOCABULARY = "vocab.json"


class NumberedPieces(Tokenizer):
    """Pieces with the ids of vocab.json; how a text is cut into pieces, a class says.

    Raises:
      ConfigError: vocab.json numbers its tokens other than 0, 1, 2 ..., or lacks a special one.
    """

    file = VOCABULARY
    special: ClassVar[dict[str, str]]  # the tokens that the vocabulary must have, by role
    others: Collection[str] = ()  # that follow the vocabulary

    def __init__(self, folder: Path, definition: bytes):
        super().__init__(definition)
        path = folder / VOCABULARY
        self._ids = read_object(path)
        tokens = self.special.values()
        if not set(tokens) <= set(self._ids) or set(self._ids.values()) != set(
            range(len(self._ids))
        ):
            raise ConfigError(
                f"{path}: must number its tokens from 0 on, {', '.join(tokens)} among them."
            )
        self._names = sorted(self._ids, key=self._ids.__getitem__)
        self.vocab_size = len(self._ids)
        self._set_ids({role: self._ids[token] for role, token in self.special.items()})
        self.unk_id = self._ids[self.special["unk"]]
        self.sentinel_ids = ()

    def check_added(self, folder: Path, config: Json) -> None:
        """Refuses tokens that a folder adds to the vocabulary.

        Raises:
          ConfigError: names one.
        """
        for token, _, _ in read_added(folder, config):
            if token.content not in {*self._ids, *self.spelled, *self.others}:
                raise ConfigError(
                    f"{folder}: adds {token.content!r}, which {VOCABULARY} lacks: tokens are not"
                    " added to this kind of vocabulary; take it out if no text has it."
                )

    @property
    def spelled(self) -> dict[str, int]:
        return {token: self._ids[token] for token in self.special.values()}

    def specials(self) -> set[int]:
        return super().specials() | {self.unk_id}

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            rows.append([self._ids.get(piece, self.unk_id) for piece in self._cut(text)])
        return rows

    def _cut(self, text: str) -> list[str]:
        """Cuts a text into pieces of the vocabulary, and others, which are unknown."""
        raise NotImplementedError


class NumberedSentencePieces(NumberedPieces):
    """The pieces of a sentencepiece model, with the ids of vocab.json.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    model_file: ClassVar[str]

    def __init__(self, folder: Path):
        path = folder / self.model_file
        definition = read_bytes(path, limit=MAX_TOKENIZER_BYTES)
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=definition)
            self._model.encode("a")  # fails of an empty file
        except Exception as error:  # a plain RuntimeError, and more
            raise ConfigError(f"{path}: is no sentencepiece model ({error}).") from None
        super().__init__(folder, definition)

    def _cut(self, text: str) -> list[str]:
        return self._model.encode(text, out_type=str)

    def decode(self, ids: Iterable[int]) -> str:
        text = self._model.decode_pieces([self._names[i] for i in self._with_text(ids)])
        return text.replace("\u2581", " ").strip()

    def _piece(self, index: int) -> bytes:
        return token_text.meta_space(self._names[index])
