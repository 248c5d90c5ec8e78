"""The special tokens around one text or two, and truncation to a length.

They are those of the tokenizer's own template.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Encoding

    # it imports jax, which tokenizers do without
    from flaxformer_lite.objectives.rows import Tokenizer

SPECIAL = -1  # the part that special tokens belong to


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
    types: np.ndarray  # [T] int32, 1 for the second text if the model distinguishes the two
    # [T] int32, 0 for the first text, 1 for the second, SPECIAL for special tokens
    part: np.ndarray
    start: np.ndarray  # [T] int32, characters of that text; 0 for special tokens
    end: np.ndarray
    cut: int = 0  # tokens that were too many, and left out


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

    def join(
        self, first: Spans, second: Spans | None = None, *, limit: int, whole: int | None = None
    ) -> Framed:
        """Joins texts to a row of at most `limit` tokens.

        Of two texts that are too long the longer loses tokens first, as in transformers'
        `longest_first`; with `whole`, 0 or 1, that text does only where the other has none left.
        """
        texts = [first] if second is None else [first, second]
        room = max(limit - self.specials(len(texts)), 0)
        kept = [min(len(first.ids), room)]
        if second is not None and whole is not None:
            kept = [min(len(text.ids), room) for text in texts]
            kept[1 - whole] = min(kept[1 - whole], room - kept[whole])
        elif second is not None:
            kept = list(longest_first(len(first.ids), len(second.ids), room))
        lost = sum(len(text.ids) for text in texts) - sum(kept)
        size = sum(kept) + self.specials(len(texts))
        # one allocation, as a table has a million rows
        ids, types, part, start, end = np.zeros((5, size), np.int32)
        part[:] = SPECIAL
        at = len(self.before)
        ids[:at] = self.before
        for number, (text, count) in enumerate(zip(texts, kept, strict=True)):
            if number:
                ids[at : at + len(self.between)] = self.between
                at += len(self.between)
                types[at:] = self.second_type
            stop = at + count
            used = text
            if count < len(text.ids):
                first_kept = 0
                if self.truncation_side == "left":
                    first_kept = len(text.ids) - count
                used = text.cut(first_kept, first_kept + count)
            ids[at:stop] = used.ids
            part[at:stop] = number
            start[at:stop] = used.start
            end[at:stop] = used.end
            at = stop
        ids[at:] = self.after
        return Framed(ids, types, part, start, end, lost)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of two texts are kept; the longer one loses tokens first."""
    kept = min(first, second, room // 2)
    if first > second:
        kept = min(first, room - kept)
    return kept, min(second, room - kept)


def usual(tokenizer: "Tokenizer", skeleton: str) -> Frame:
    """Returns the default frame: BERT's for encoders, end-of-text for encoder-decoders."""
    cls: tuple[int, ...] = ()
    if skeleton == "encoder" and tokenizer.cls_id is not None:
        cls = (tokenizer.cls_id,)
    last = {"encoder": tokenizer.sep_id, "encoder_decoder": tokenizer.eos_id}.get(skeleton)
    end: tuple[int, ...] = ()
    if last is not None:
        end = (last,)
    return Frame(cls, end, end, int(skeleton == "encoder"))


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
