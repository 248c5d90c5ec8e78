"""Tokenizers of Marian's translators: a sentencepiece model per language, and one vocabulary."""

from pathlib import Path
from typing import ClassVar

from flaxformer_lite.contrib.seq2seq_tokenizers.numbered_pieces import (
    VOCABULARY,
    NumberedSentencePieces,
)
from flaxformer_lite.files.read import Json
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer


class Marian(NumberedSentencePieces):
    """The pieces of source.spm, with the ids of vocab.json.

    A text may begin with the language to translate into, as in `>>fra<< Hello`.
    """

    model_file = "source.spm"
    special: ClassVar = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}

    def _cut(self, text: str) -> list[str]:
        language = []
        end = text.find("<<")
        if text.startswith(">>") and end >= 0:
            language = [text[: end + 2]]
            text = text[end + 2 :]
        return [*language, *super()._cut(text)]


FILES = (Marian.model_file, VOCABULARY)


def read_tokenizer(folder: Path, config: Json, template: str) -> PublishedTokenizer:
    """Reads the tokenizer of a folder, in which the end of a text is a token."""
    inner = Marian(folder)
    return PublishedTokenizer(inner, config, template, inner.spelled, after=(inner.eos_id,))
