"""The tokenizer of Blenderbot-small: ParlAI's byte-pair encoding of lower-cased words."""

import functools
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from flaxformer_lite.files.read import read_text
from flaxformer_lite.text.numbered_pieces import VOCABULARY, read_ids
from flaxformer_lite.text.tokenizer import LARGEST, Tokenizer

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


class BlenderbotSmall(Tokenizer):
    """Splits text into words and punctuation, lower-cases them, and merges letters by merges.txt.

    Raises:
      ConfigError: a file of the folder is damaged, or lacks a special token.
    """

    file = VOCABULARY

    def __init__(self, folder: Path):
        merges = read_text(folder / MERGES, limit=LARGEST)
        super().__init__(merges.encode())
        pairs = [tuple(line.split()) for line in merges.split("\n")[1:-1]]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._ids = read_ids(folder, (START, END, UNKNOWN, PADDING))
        self._names = sorted(self._ids, key=self._ids.__getitem__)
        self._merged = functools.lru_cache(WORDS_KEPT)(self._merge)
        self.vocab_size = len(self._ids)
        self.bos_id = self._ids[START]
        self.eos_id = self._ids[END]
        self.unk_id = self._ids[UNKNOWN]
        self.pad_id = self._ids[PADDING]
        self.cls_id = None
        self.sep_id = None
        self.mask_id = None
        self.sentinel_ids = ()

    @property
    def spelled(self) -> dict[str, int]:
        return {token: self._ids[token] for token in (START, END, UNKNOWN, PADDING)}

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> list[int]:
        pieces: list[str] = []
        for run in RUN.findall(text):
            spaced = re.sub(r"([.,!?()])", r" \1", run)
            spaced = re.sub(r"(')", r" \1 ", spaced)
            spaced = SPACES.sub(" ", spaced).replace("\n", f" {NEW_LINE}")
            for word in filter(None, spaced.split(" ")):
                pieces += self._merged(word.lower())
        return [self._ids.get(piece.lower(), self.unk_id) for piece in pieces]

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
        special = self.specials() | {self.unk_id}
        known = [int(i) for i in ids if 0 <= i < self.vocab_size and int(i) not in special]
        return " ".join(self._names[i] for i in known).replace(f"{CONTINUED} ", "").strip()

    def pieces(self) -> list[bytes]:
        special = self.specials() | {self.unk_id}
        texts = []
        for index, name in enumerate(self._names):
            if index in special:
                texts.append(b"")
            elif name.endswith(CONTINUED):
                texts.append(name.removesuffix(CONTINUED).encode())
            else:
                texts.append(f"{name} ".encode())
        return texts


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
