"""Shows a split of a text to objectives: pieces of its documents, in the rows of a plan."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.objectives.rows import CountedRecords
from flaxformer_lite.text.tokenizer import Tokenizer

COUNTED_TOKENS = 1 << 24  # at a time


@dataclass(frozen=True)
class Tokens:
    """The texts of one split of a store, one after another; each ends with the end-of-text id."""

    store: TokenStore
    split: str

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """The start of each text in `ids`, and the end of the last one, int64 [texts + 1]."""
        records = self.store.splits[self.split]
        offsets = self.store.offsets("ids")[records.start : records.stop + 1]
        if offsets[0]:  # those of training are mapped
            offsets = offsets - offsets[0]
        return offsets

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The tokens, uint16 or uint32 [tokens]."""
        records = self.store.splits[self.split]
        begin, end = self.store.offsets("ids")[[records.start, records.stop]]
        return self.store.values("ids")[begin:end]


@dataclass(frozen=True, eq=False)
class Records:
    """The rows from which an objective makes examples; a row is a list of pieces of documents.

    Attributes:
      tokenizer: the tokenizer of the text.
      length: T of the encoder or decoder-only model.
      target_length: T of the decoder of an encoder-decoder, else 0.
      ids: uint16 or uint32 [tokens], the tokens of the split.
      start: int64 [pieces], the index of the first token of each piece in `ids`.
      length_of: int32 [pieces], the number of tokens of each piece.
      document: int64 [pieces], the text that each piece is from.
      first: int64 [rows + 1]; row r has the pieces first[r] .. first[r + 1] - 1.
      trained_on: the tokens of the training split.
      source: the name of the source in a mixture, else "".
      mixture: the training records of all sources of the mixture, or None.
    """

    tokenizer: Tokenizer
    length: int
    target_length: int
    ids: np.ndarray
    start: np.ndarray
    length_of: np.ndarray
    document: np.ndarray
    first: np.ndarray
    trained_on: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))
    source: str = ""
    mixture: CountedRecords | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    def pieces_of(self, row: int) -> range:
        """Returns the numbers of a row's pieces."""
        return range(int(self.first[row]), int(self.first[row + 1]))

    def row(self, index: int) -> list[np.ndarray]:
        """Returns the pieces of a row, each int32."""
        return list(map(self.piece, self.pieces_of(index)))

    def piece(self, number: int) -> np.ndarray:
        """Returns the tokens of a piece, int32."""
        start = int(self.start[number])
        return np.asarray(self.ids[start : start + int(self.length_of[number])], np.int32)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of occurrences of each id in the training split, int64 [V].

        If that split is empty, the ids of these records are counted instead.
        """
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        ids = self.trained_on if len(self.trained_on) else self.ids
        for begin in range(0, len(ids), COUNTED_TOKENS):
            counts += np.bincount(ids[begin : begin + COUNTED_TOKENS], minlength=len(counts))
        return counts

    def other_piece(self, index: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray:
        """Draws a random piece from a document other than the one that row `index` starts with.

        Of sixteen random pieces of other documents, returns the first with `tokens` tokens or more,
        or else the longest. If all sixteen are from the same document, returns the piece half a
        split away.
        """
        first = int(self.first[index])
        drawn = rng.integers(len(self.start), size=16)
        others = drawn[self.document[drawn] != self.document[first]]
        if not len(others):
            return self.piece((first + len(self.start) // 2) % len(self.start))
        return self.piece(int(others[np.argmax(np.minimum(self.length_of[others], tokens))]))


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatRecords:
    """The records of one split of all sources of a mixture, concatenated."""

    parts: Sequence[Records]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getattr__(self, name: str) -> Any:
        if name in ("tokenizer", "length", "target_length"):  # the same for all sources
            return getattr(self.parts[0], name)
        raise AttributeError(name)

    def find(self, row: int) -> tuple[Records, int]:
        """Returns the records that hold a row, and the row's number in them."""
        at = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[at], row - int(self.starts[at])

    @functools.cached_property
    def starts(self) -> np.ndarray:
        return np.cumsum([0, *map(len, self.parts)])

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of occurrences of each id in the training split of all sources, int64 [V]."""
        return np.sum([part.counts for part in self.parts], axis=0)
