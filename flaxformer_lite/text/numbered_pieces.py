"""Tokenizers of sentencepiece pieces whose ids come from a separate file, vocab.json."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import sentencepiece

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import read_bytes, read_object
from flaxformer_lite.text import token_text
from flaxformer_lite.text.tokenizer import LARGEST, Tokenizer

VOCABULARY = "vocab.json"


class NumberedPieces(Tokenizer):
    """The pieces of a sentencepiece model, with the ids of vocab.json.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    file = VOCABULARY
    model_file: ClassVar[str]
    special: ClassVar[tuple[str, ...]]  # tokens that the vocabulary must have

    def __init__(self, folder: Path):
        super().__init__(read_bytes(folder / self.model_file, limit=LARGEST))
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=self.definition)
            self._model.encode("a")  # fails of an empty file
        except Exception as error:  # a plain RuntimeError, and more
            raise ConfigError(
                f"{folder / self.model_file}: is no sentencepiece model ({error})."
            ) from None
        self._ids = read_ids(folder, self.special)
        self._names = sorted(self._ids, key=self._ids.__getitem__)
        self.vocab_size = len(self._ids)
        self.eos_id = self._ids["</s>"]
        self.unk_id = self._ids["<unk>"]
        self.pad_id = self._ids["<pad>"]
        self.bos_id = self._ids["<s>"] if "<s>" in self.special else None
        self.cls_id = None
        self.sep_id = None
        self.mask_id = None
        self.sentinel_ids = ()

    @property
    def spelled(self) -> dict[str, int]:
        return {token: self._ids[token] for token in self.special}

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> list[int]:
        return [self._ids.get(piece, self.unk_id) for piece in self._pieces_of(text)]

    def _pieces_of(self, text: str) -> list[str]:
        return self._model.encode(text, out_type=str)

    def decode(self, ids: Iterable[int]) -> str:
        special = self.specials() | {self.unk_id}
        names = len(self._names)
        known = [int(i) for i in ids if 0 <= i < names and int(i) not in special]
        text = self._model.decode_pieces([self._names[i] for i in known])
        return text.replace("\u2581", " ").strip()

    def pieces(self) -> list[bytes]:
        special = self.specials() | {self.unk_id}
        texts = []
        for i, name in enumerate(self._names):
            texts.append(b"" if i in special else token_text.meta_space(name))
        return texts + [b""] * (self.vocab_size - len(texts))


def read_ids(folder: Path, special: Iterable[str]) -> dict[str, int]:
    """Reads vocab.json.

    Raises:
      ConfigError: its ids are not 0, 1, 2 ..., or a special token is missing.
    """
    ids = read_object(folder / VOCABULARY)
    if not set(special) <= set(ids) or set(ids.values()) != set(range(len(ids))):
        raise ConfigError(
            f"{folder / VOCABULARY}: must number its tokens from 0 on, {', '.join(special)}"
            " among them."
        )
    return ids
