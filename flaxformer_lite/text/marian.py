"""Tokenizers of Marian's translators: a sentencepiece model for each language, and ids of both."""

from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import read_bytes, read_object
from flaxformer_lite.text import token_text
from flaxformer_lite.text.tokenizer import LARGEST, Tokenizer

SOURCE = "source.spm"
VOCABULARY = "vocab.json"
SPECIAL = ("</s>", "<unk>", "<pad>")


class Marian(Tokenizer):
    """The pieces of source.spm, with the ids of vocab.json.

    A text may begin with the language to translate into, as in `>>fra<< Hello`.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    file = VOCABULARY

    def __init__(self, folder: Path):
        super().__init__(read_bytes(folder / SOURCE, limit=LARGEST))
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=self.definition)
            self._model.encode("a")  # fails of an empty file
        except Exception as error:  # a plain RuntimeError, and more
            raise ConfigError(f"{folder / SOURCE}: is no sentencepiece model ({error}).") from None
        self._ids = read_object(folder / VOCABULARY)
        numbers = self._ids.values()
        if not set(SPECIAL) <= set(self._ids) or set(numbers) != set(range(len(self._ids))):
            raise ConfigError(
                f"{folder / VOCABULARY}: must number its tokens from 0 on, {', '.join(SPECIAL)}"
                " among them."
            )
        self._names = sorted(self._ids, key=self._ids.__getitem__)
        self.vocab_size = len(self._ids)
        self.eos_id = self._ids["</s>"]
        self.unk_id = self._ids["<unk>"]
        self.pad_id = self._ids["<pad>"]
        self.bos_id = None
        self.cls_id = None
        self.sep_id = None
        self.mask_id = None
        self.sentinel_ids = ()

    @property
    def spelled(self) -> dict[str, int]:
        return {token: self._ids[token] for token in SPECIAL}

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> list[int]:
        language = []
        end = text.find("<<")
        if text.startswith(">>") and end >= 0:
            language = [text[: end + 2]]
            text = text[end + 2 :]
        pieces = self._model.encode(text, out_type=str)
        return [self._ids.get(piece, self.unk_id) for piece in [*language, *pieces]]

    def decode(self, ids: Iterable[int]) -> str:
        special = self.specials() | {self.unk_id}
        known = [int(i) for i in ids if 0 <= i < self.vocab_size and int(i) not in special]
        text = self._model.decode_pieces([self._names[i] for i in known])
        return text.replace("\u2581", " ").strip()

    def pieces(self) -> list[bytes]:
        special = self.specials() | {self.unk_id}
        return [
            b"" if i in special else token_text.meta_space(name)
            for i, name in enumerate(self._names)
        ]
