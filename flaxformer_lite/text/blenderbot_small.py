"""The tokenizer of Blenderbot-small: ParlAI's byte-pair encoding of lower-cased words."""

import functools
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from flaxformer_lite.files.read import read_text
from flaxformer_lite.text.numbered_pieces import NumberedPieces
from flaxformer_lite.text.tokenizer import LARGEST

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
WORDS_KEPT = 1 << 16


class BlenderbotSmall(NumberedPieces):
    """Splits text into words and punctuation, lower-cases them, and merges letters by merges.txt.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    special: ClassVar = {"bos": START, "eos": END, "unk": UNKNOWN, "pad": PADDING}

    def __init__(self, folder: Path):
        merges = read_text(folder / MERGES, limit=LARGEST)
        super().__init__(folder, merges.encode())
        pairs = [tuple(line.split()) for line in merges.split("\n")[1:-1]]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._merged = functools.lru_cache(WORDS_KEPT)(self._merge)

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = []
        for run in RUN.findall(text):
            spaced = re.sub(r"([.,!?()])", r" \1", run)
            spaced = re.sub(r"(')", r" \1 ", spaced)
            spaced = SPACES.sub(" ", spaced).replace("\n", f" {NEW_LINE}")
            for word in filter(None, spaced.split(" ")):
                pieces += self._merged(word.lower())
        return [piece.lower() for piece in pieces]

    def _merge(self, word: str) -> tuple[str, ...]:
        """Merges the letters of a word, at each step the pair that ranks first in merges.txt."""
        parts = [*word[:-1], word[-1] + LAST]
        while len(parts) > 1:
            neighbours = itertools.pairwise(parts)
            first = min(neighbours, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if first not in self._ranks:
                break
            parts = _joined(parts, *first)
        continued = [f"{part}{CONTINUED}" for part in parts[:-1]]
        return (*continued, parts[-1].removesuffix(LAST))

    def decode(self, ids: Iterable[int]) -> str:
        text = " ".join(self._names[i] for i in self._with_text(ids))
        return text.replace(f"{CONTINUED} ", "").strip()

    def _piece(self, index: int) -> bytes:
        name = self._names[index]
        if name.endswith(CONTINUED):
            return name.removesuffix(CONTINUED).encode()
        return f"{name} ".encode()


def _joined(parts: list[str], left: str, right: str) -> list[str]:
    """Joins every `left` that is followed by `right`, from the first on."""
    joined: list[str] = []
    at = 0
    while at < len(parts):
        is_pair = parts[at] == left and parts[at + 1 : at + 2] == [right]
        if is_pair:
            joined.append(left + right)
            at += 2
        else:
            joined.append(parts[at])
            at += 1
    return joined
