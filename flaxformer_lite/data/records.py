"""Shows a split to objectives: the records of a store, in the rows of a plan."""

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flaxformer_lite.data.mixing import Mixing
from flaxformer_lite.data.order import endless_finder
from flaxformer_lite.data.rows import Table, TableRows
from flaxformer_lite.data.source import Source
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.objectives.row_plans import WHOLE_DOCUMENTS, RowPlan, share_rows
from flaxformer_lite.objectives.rows import Record
from flaxformer_lite.text.special_tokens import Frame
from flaxformer_lite.text.tokenizer import Tokenizer

COUNTED_TOKENS = 1 << 24  # at a time
FRAMELESS = Frame()


@dataclass(frozen=True)
class Tokens:
    """The documents of one split of a store; each text ends with the end-of-text id.

    Attributes:
      names: the columns of the tokens: `ids`, or those of pairs.
    """

    store: TokenStore
    split: str
    names: tuple[str, ...] = ("ids",)

    def __len__(self) -> int:
        return len(self.store.splits[self.split])

    @property
    def num_tokens(self) -> int:
        return sum(len(self.column(name)) for name in self.names)

    def column(self, name: str) -> np.ndarray:
        """Returns the entries of a column, [documents, *shape] or [total]."""
        records = self.store.splits[self.split]
        ends = records.start, records.stop
        if self.store.has_offsets(name):
            ends = tuple(self.store.offsets(name)[list(ends)])
        return self.store.values(name)[slice(*ends)]

    def offsets_of(self, name: str) -> np.ndarray:
        """Returns where entries begin in a column, and the last one ends, int64 [documents + 1]."""
        records = self.store.splits[self.split]
        offsets = self.store.offsets(name)[records.start : records.stop + 1]
        if offsets[0]:  # those of training are mapped
            offsets = offsets - offsets[0]
        return offsets

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """The start of each text in `ids`, and the end of the last one, int64 [texts + 1]."""
        return self.offsets_of("ids")

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The tokens, uint16 or uint32 [tokens]."""
        return self.column("ids")

    def count(self, vocab_size: int) -> np.ndarray:
        """Counts the occurrences of each id, int64 [V]."""
        counts = np.zeros(vocab_size, np.int64)
        for name in self.names:
            ids = self.column(name)
            for begin in range(0, len(ids), COUNTED_TOKENS):
                counts += np.bincount(ids[begin : begin + COUNTED_TOKENS], minlength=vocab_size)
        return counts


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    source: Source
    tokenizer: Tokenizer
    tokens: dict[str, Tokens]  # by split
    fingerprint: str  # hash of text, split and tokenizer


@dataclass(frozen=True, eq=False)
class Records:
    """The rows of a split, of which examples are made (objectives/rows.py: Rows).

    A row is a record, or several pieces of records that share it. A row of a table may have several
    records (a long context in strides) or none.

    Attributes:
      tokenizer: the tokenizer of the texts.
      length: T of the encoder or decoder-only model.
      target_length: T of the decoder of an encoder-decoder, else 0.
      store: the records. Of a table, its counts are "cut", the records that lost tokens, as they
        were too long; "dropped", the rows without a record; "untaught", the records from which
        nothing is learned.
      names: the columns that objectives read.
      split: which records of the store these are.
      plan: the pieces of each row; None where each record is a row.
      frame: the special tokens around texts.
      skeleton: the model's.
      table, rows: the table that they are made from, and its rows by role.
      sizes: int32 [rows, 1 or 2], the tokens of each row of a task, and of its decoder side.
      trained_on: the training split of a text.
      source: the name of the source in a mixture, else "".
      mixture: the training records of all sources of the mixture, or None.
      reference: [rows, ...] predictions of the starting weights, if the task needs them.
    """

    tokenizer: Tokenizer
    length: int
    target_length: int
    store: TokenStore
    names: tuple[str, ...]
    split: str = "train"
    plan: RowPlan | None = None
    frame: Frame = FRAMELESS
    skeleton: str = ""
    table: Table | None = None
    rows: TableRows | Sequence[dict[str, Any]] = ()
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int32))
    trained_on: Tokens | None = None
    source: str = ""
    mixture: "ConcatRecords | None" = None
    reference: np.ndarray | None = None

    def __len__(self) -> int:
        if self.plan is not None:
            return len(self.plan.first) - 1
        return len(self.store.splits[self.split])

    def pieces(self, row: int) -> list[Record]:
        """Returns the record of a row, or the pieces of records that share it."""
        if self.plan is None:
            return [self._read(row)]
        if not self.plan.cuts_documents:
            return list(map(self._read, self.records_of(row).tolist()))
        first, last = self.plan.first[[row, row + 1]].tolist()
        return [{"ids": self.piece(number)} for number in range(first, last)]

    def records_of(self, row: int) -> np.ndarray:
        """Returns the numbers of the records that a row is made of, from 0, int64 [pieces]."""
        if self.plan is None:
            return np.array([range(len(self))[row]])
        return self.plan.document[self.plan.first[row] : self.plan.first[row + 1]]

    def piece(self, number: int) -> np.ndarray:
        """Returns the tokens of a piece of the plan, int32."""
        assert self.plan is not None, "of a text"
        start = int(self.plan.start[number])
        return np.asarray(self.ids[start : start + int(self.plan.length[number])], np.int32)

    def other_piece(self, row: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray:
        """Draws a random piece from a document other than the one that a row starts with.

        Of sixteen random pieces of other documents, returns the first with `tokens` tokens or more,
        or else the longest. If all sixteen are from the same document, returns the piece half a
        split away.
        """
        assert self.plan is not None, "of a text"
        first = int(self.plan.first[row])
        drawn = rng.integers(len(self.plan.document), size=16)
        others = drawn[self.plan.document[drawn] != self.plan.document[first]]
        if not len(others):
            return self.piece((first + len(self.plan.document) // 2) % len(self.plan.document))
        return self.piece(int(others[np.argmax(np.minimum(self.plan.length[others], tokens))]))

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The tokens of all records, one after another, uint16 or uint32 [tokens]."""
        return self.column("ids")

    def column(self, name: str) -> np.ndarray:
        """Returns the entries of all records in a column, [records, *shape] or [total]."""
        return Tokens(self.store, self.split).column(name)

    def lengths(self, name: str) -> np.ndarray:
        """Returns the lengths of all records' entries in a column, [records] int32."""
        records = self.store.splits[self.split]
        return self.store.lengths(name)[records.start : records.stop]

    @property
    def table_rows(self) -> np.ndarray:
        """The number of the table row of each record, [records] int64."""
        return self.column("row")

    def table_row(self, row: int) -> dict[str, Any]:
        """Returns the table's values of a row's first record, by column and by role."""
        assert isinstance(self.rows, TableRows), "of a table"
        return self.rows.with_columns(int(self.table_rows[self.records_of(row)[0]]))

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """The occurrences of each id in training, of all sources of a mixture, int64 [V]."""
        if self.mixture is not None:
            return self.mixture.counts
        return self.count_tokens()

    def count_tokens(self) -> np.ndarray:
        """Counts the ids of the training split, or of these records if it is empty, int64 [V]."""
        own = Tokens(self.store, self.split, self.names)
        return (self.trained_on or own).count(self.tokenizer.vocab_size)

    @functools.cached_property
    def num_texts(self) -> int:
        """The most texts of a record, where the store has `text_lengths`."""
        return int(self.lengths("text_lengths").max())

    def text_lengths(self, rows: np.ndarray, texts: int) -> np.ndarray:
        """Returns the tokens of each text of rows, [rows, texts]; 1 for a lacking one."""
        if "text_lengths" not in self.store:
            return self.sizes[rows, :1]
        offsets = self.store.offsets("text_lengths")
        values = self.store.values("text_lengths")
        place = offsets[rows][:, None] + np.arange(texts)
        is_text = place < offsets[rows + 1][:, None]
        return np.where(is_text, values[np.minimum(place, len(values) - 1)], 1)

    def tokens_cut(self, row: int) -> list[int]:
        """Returns the number of tokens that each record of a row of a table has lost."""
        return self.column("cut")[self.records_of(row)].tolist()

    def join_neighbors(self) -> "Records":
        """Returns the records with neighbors joined into one row while they fit."""
        count = np.arange(len(self) + 1)
        budgets = (self.length, self.target_length)[: self.sizes.shape[1]]
        whole = RowPlan(WHOLE_DOCUMENTS, WHOLE_DOCUMENTS, count[:-1], count)
        plan = share_rows(whole, self.sizes.astype(np.int64), budgets)
        return replace(self, plan=plan, sizes=np.add.reduceat(self.sizes, plan.first[:-1]))

    def _read(self, record: int) -> Record:
        number = self.store.splits[self.split][record]
        return {name: self.store.entry(number, name) for name in self.names}


@dataclass(frozen=True, eq=False)
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

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each source."""
        return list(map(len, self.parts))

    @functools.cached_property
    def starts(self) -> np.ndarray:
        return np.cumsum([0, *self.sizes])

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of occurrences of each id in the training split of all sources, int64 [V]."""
        return np.sum([part.count_tokens() for part in self.parts], axis=0)


@dataclass(frozen=True, eq=False)
class Stream:
    """The rows of both splits of a source, and the plans of its epochs."""

    source: Source  # of the training rows
    splits: Mapping[str, Records]  # the training split in its first plan
    fingerprint: str  # hash of content, tokenizer, objective and lengths
    open_plan: Callable[[int], Records]  # opens one of `num_plans` of the training split
    num_plans: int = 1
    corpus: Corpus | None = None  # of a text

    def finder(self, seed: int) -> Callable[[int], tuple[Records, int]]:
        """Returns the function that finds row p of the endless stream of training rows.

        The function returns the records and the row in them.
        """
        return endless_finder(self.open_plan, self.num_plans, seed)

    def rows_of(self, epochs: float) -> int:
        """Returns the number of training rows in `epochs` epochs, rounded up."""
        full = int(epochs)
        cycles, rest = divmod(full, self.num_plans)
        count = sum(len(self.open_plan(n)) for n in range(rest))
        if cycles:
            count += cycles * sum(len(self.open_plan(n)) for n in range(self.num_plans))
        if epochs > full:
            last = len(self.open_plan(full % self.num_plans)) * (epochs - full)
            count += math.ceil(last - 1e-6)
        return count

    def prepare(self, epochs: float) -> None:
        """Plans the plans of the first `epochs` epochs now, while the disk has room."""
        for number in range(min(math.ceil(epochs), self.num_plans)):
            self.open_plan(number)


def find_in_mixture(
    sources: Mapping[str, Stream], mixing: Mixing, seed: int
) -> Callable[[int], tuple[Records, int]]:
    """Returns a function that finds row p of the stream.

    It returns the records of the row's source, and the number of the row in them. Each source has
    its own order, which does not change when other sources are added.
    """
    finders = []
    for name, stream in sources.items():
        # By name and not by number, so that other sources may come and go; not by hash(), which
        # differs between processes.
        finders.append(stream.finder((seed + zlib.crc32(name.encode())) % 2**32))

    def find(position: int) -> tuple[Records, int]:
        source, number = mixing.find(position)
        return finders[source](number)

    return find
