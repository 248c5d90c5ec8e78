"""Tokenizers of Marian's translators: a sentencepiece model per language, and one vocabulary."""

from typing import ClassVar

from flaxformer_lite.contrib.older_tokenizers.numbered_pieces import NumberedSentencePieces


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
