"""The tokenizer of Blenderbot-small: ParlAI's byte-pair encoding of lower-cased words."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from tokenizers import models

from flaxformer_lite.contrib.older_tokenizers.numbered_pieces import NumberedPieces
from flaxformer_lite.files.read import read_text
from flaxformer_lite.text.saved_files import MAX_TOKENIZER_BYTES

MERGES = "merges.txt"
START = "__start__"
END = "__end__"
UNKNOWN = "__unk__"
PADDING = "__null__"
NEW_LINE = "__newln__"
LAST = "</w>"  # after the last letter of a word, in merges
CONTINUED = "@@"  # after a piece that is not the last of its word, in the vocabulary
# White space as Unicode has it; Python's counts four separators of old files, too.
SPACE = r"(?:(?![\x1c-\x1f])\s)"
RUN = re.compile(rf"(?:(?!{SPACE}).)+\n?", re.DOTALL)
SPACES = re.compile(rf"{SPACE}{{2,}}")


class BlenderbotSmall(NumberedPieces):
    """Splits text into words and punctuation, lower-cases them, and merges letters by merges.txt.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    special: ClassVar = {"bos": START, "eos": END, "unk": UNKNOWN, "pad": PADDING}

    def __init__(self, folder: Path):
        merges = read_text(folder / MERGES, limit=MAX_TOKENIZER_BYTES)
        super().__init__(folder, merges.encode())
        pairs = []
        pieces = {UNKNOWN}
        for line in merges.split("\n")[1:-1]:
            pair = line.split()
            if len(pair) == 2:
                pairs.append((pair[0], pair[1]))
                pieces.update(pair, ["".join(pair)])
        # letters that are never merged are pieces of the vocabulary alone
        for name in self._names:
            pieces.add(name.removesuffix(CONTINUED))
            pieces.add(f"{name}{LAST}")
        # its numbers are not ours: a merge may join what the vocabulary lacks
        numbers = {piece: number for number, piece in enumerate(sorted(pieces))}
        self._words = models.BPE(numbers, pairs, unk_token=UNKNOWN, end_of_word_suffix=LAST)

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = []
        for run in RUN.findall(text):
            spaced = re.sub(r"([.,!?()])", r" \1", run)
            spaced = re.sub(r"(')", r" \1 ", spaced)
            spaced = SPACES.sub(" ", spaced).replace("\n", f" {NEW_LINE}")
            for word in filter(None, spaced.split(" ")):
                pieces += self._merge(word.lower())
        return [piece.lower() for piece in pieces]

    def _merge(self, word: str) -> list[str]:
        """Merges the letters of a word, and spells its pieces as the vocabulary does."""
        parts = [token.value for token in self._words.tokenize(word)]
        continued = [f"{part}{CONTINUED}" for part in parts[:-1]]
        return [*continued, parts[-1].removesuffix(LAST)]

    def decode(self, ids: Iterable[int]) -> str:
        text = " ".join(self._names[i] for i in self._with_text(ids))
        return text.replace(f"{CONTINUED} ", "").strip()

    def _piece(self, index: int) -> bytes:
        name = self._names[index]
        if name.endswith(CONTINUED):
            return name.removesuffix(CONTINUED).encode()
        return f"{name} ".encode()
