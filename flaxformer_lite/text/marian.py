"""Tokenizers of Marian's translators: a sentencepiece model per language, and one vocabulary."""

from flaxformer_lite.text.numbered_pieces import NumberedPieces


class Marian(NumberedPieces):
    """The pieces of source.spm, with the ids of vocab.json.

    A text may begin with the language to translate into, as in `>>fra<< Hello`.
    """

    model_file = "source.spm"
    special = ("</s>", "<unk>", "<pad>")

    def _pieces_of(self, text: str) -> list[str]:
        language = []
        end = text.find("<<")
        if text.startswith(">>") and end >= 0:
            language = [text[: end + 2]]
            text = text[end + 2 :]
        return [*language, *super()._pieces_of(text)]
