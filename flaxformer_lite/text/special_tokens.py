"""The special tokens around one text or two, and truncation to a length.

They come from the tokenizer's own template.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Encoding


SPECIAL_PART = -1  # the part that special tokens belong to


class Spans(NamedTuple):
    """The tokens of a text, and the characters that each stands for."""

    ids: np.ndarray  # [T] int32
    start: np.ndarray  # [T] int32, in characters of the text
    end: np.ndarray  # exclusive

    def cut(self, begin: int, stop: int | None = None) -> "Spans":
        return Spans(*(column[begin:stop] for column in self))


class Framed(NamedTuple):
    """A row of tokens: one text or two with the special tokens around them."""

    ids: np.ndarray  # [T] int32
    second: int  # the column at which the second text begins; T without one
    cut: int  # tokens that were too many, and left out


class FramedSpans(NamedTuple):
    """A row of tokens like `Framed`, and the characters that each stands for."""

    ids: np.ndarray  # [T] int32
    second: int
    cut: int
    # [T] int32, 0 for the first text, 1 for the second, SPECIAL_PART for special tokens
    part: np.ndarray
    start: np.ndarray  # [T] int32, characters of that text; 0 for special tokens
    end: np.ndarray


@dataclass(frozen=True)
class Frame:
    """Special tokens before, between and after texts, as in `[CLS] A [SEP] B [SEP]`."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    second_type: int = 0  # token type of the second text and of what follows it
    truncation_side: str = "right"  # at which texts lose tokens, or left

    def specials(self, texts: int) -> int:
        """Returns the number of special tokens around one text or two."""
        return len(self.before) + len(self.after) + (texts - 1) * len(self.between)

    def join_ids(
        self,
        first: Sequence[int],
        second: Sequence[int] | None = None,
        *,
        limit: int,
        whole: int | None = None,
    ) -> Framed:
        """Joins the ids of texts to a row of at most `limit` tokens.

        Of two texts that are too long the longer loses tokens first, as in transformers'
        `longest_first`; with `whole`, 0 or 1, that text does only where the other has none left.
        """
        texts = [first]
        if second is not None:
            texts.append(second)
        kept = self._kept(list(map(len, texts)), limit, whole)
        ids = [*self.before, *first[kept[0]]]
        begin = None
        if second is not None:
            ids += self.between
            begin = len(ids)
            ids += second[kept[1]]
        ids += self.after
        if begin is None:
            begin = len(ids)
        lost = sum(map(len, texts)) + self.specials(len(texts)) - len(ids)
        return Framed(np.array(ids, np.int32), begin, lost)

    def join(
        self, first: Spans, second: Spans | None = None, *, limit: int, whole: int | None = None
    ) -> FramedSpans:
        """Joins texts like `join_ids`, and tells which characters each token stands for."""
        spans = [first]
        if second is not None:
            spans.append(second)
        texts = [text.ids.tolist() for text in spans]
        row = self.join_ids(*texts, limit=limit, whole=whole)
        part, start, end = np.zeros((3, len(row.ids)), np.int32)
        part[:] = SPECIAL_PART
        at = len(self.before)
        kept = self._kept(list(map(len, texts)), limit, whole)
        for number, (text, tokens) in enumerate(zip(spans, kept, strict=True)):
            used = text.cut(tokens.start, tokens.stop)
            stop = at + len(used.ids)
            part[at:stop] = number
            start[at:stop] = used.start
            end[at:stop] = used.end
            at = stop + len(self.between)
        return FramedSpans(*row, part, start, end)

    def texts_of(self, row: Framed | FramedSpans) -> list[np.ndarray]:
        """Returns the ids of each text of a row, without the special tokens."""
        stop = len(row.ids) - len(self.after)
        if row.second == len(row.ids):
            return [row.ids[len(self.before) : stop]]
        first = row.ids[len(self.before) : row.second - len(self.between)]
        return [first, row.ids[row.second : stop]]

    def _kept(self, sizes: list[int], limit: int, whole: int | None) -> list[slice]:
        """Returns which tokens of each text are kept."""
        room = max(limit - self.specials(len(sizes)), 0)
        counts = [min(size, room) for size in sizes]
        if len(sizes) == 2 and whole is not None:
            counts[1 - whole] = min(counts[1 - whole], room - counts[whole])
        elif len(sizes) == 2:
            first, second = sizes
            counts = list(longest_first(first, second, room))
        if self.truncation_side == "left":
            return [slice(size - n, size) for size, n in zip(sizes, counts, strict=True)]
        return [slice(0, count) for count in counts]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of two texts are kept; the longer one loses tokens first."""
    kept = min(first, second, room // 2)
    if first > second:
        kept = min(first, room - kept)
    return kept, min(second, room - kept)


def of_template(encoded: "Encoding") -> Frame:
    """Reads a frame off one text, or a pair of them, in a tokenizer's template."""
    first = [at for at, text in enumerate(encoded.sequence_ids) if text == 0]
    second = [at for at, text in enumerate(encoded.sequence_ids) if text == 1]
    before = tuple(encoded.ids[: first[0]])
    if not second:
        return Frame(before, after=tuple(encoded.ids[first[-1] + 1 :]))
    between = tuple(encoded.ids[first[-1] + 1 : second[0]])
    after = tuple(encoded.ids[second[-1] + 1 :])
    return Frame(before, between, after, encoded.type_ids[second[0]])
