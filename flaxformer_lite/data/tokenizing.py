"""Tokenizes the documents of a text into a store, with the file and line of each.

Pieces are tokenized in batches that the tokenizer's library spreads over all cores.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flaxformer_lite.data import token_files
from flaxformer_lite.data.source import Source
from flaxformer_lite.data.split import SPLITS, Split
from flaxformer_lite.data.store import StoreWriter
from flaxformer_lite.objectives.rows import Record, StoredColumn
from flaxformer_lite.text.tokenizer import Tokenizer

# characters encoded at a time; cut at the end of a line, so that pieces tokenize like the whole
PIECE = 1 << 16
BATCH = 1 << 21  # characters given to the library at once: a piece for each of 32 cores
COPIED_TOKENS = 1 << 22  # of token files, that are written at a time
MARKED = 64  # tokens; the line at every 64th token of a plain text is stored
# Of each text. Pairs have two records, the source and the target.
COLUMNS = {
    "ids": StoredColumn("token"),
    "file": StoredColumn("int32", ()),
    # its line or row in the file, from 1; of token ids, the index of its first token
    "line": StoredColumn("int64", ()),
    # of plain text, the lines between the beginning of the text and every MARKED-th token
    "marks": StoredColumn("int32"),
    # whether they are known, or estimated, as the tokenizer does not keep newlines
    "is_exact": StoredColumn("bool", ()),
}


# of a text that is not plain
NO_LINES: Record = {"marks": np.zeros(0, np.int32), "is_exact": np.asarray(True)}


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
      split: "train" or "eval".
      text: the characters.
      is_first: whether the text begins with it.
      is_last: whether the text ends with it.
      file: number of the file.
      line: the line or row where the text begins.
    """

    split: str
    text: str
    is_first: bool
    is_last: bool
    file: int
    line: int


def read_pieces(source: Source, split: Split, files: slice = slice(None)) -> Iterator[Piece]:
    """Cuts texts into parts of at most PIECE characters, at the end of a line if possible."""
    for file, line, document in source.placed(files):
        for name, texts in split.deal([document]):
            for text in texts:
                at = 0
                while at < len(text):
                    end = at + PIECE
                    if end < len(text):
                        end = text.rfind("\n", at, end) + 1 or end
                    yield Piece(name, text[at:end], at == 0, end >= len(text), file, line)
                    at = end
            if source.is_plain[file]:  # the rest of the document may be of the other split
                line += texts[0].count("\n")


def write_texts(
    writer: StoreWriter,
    pieces: Iterable[Piece],
    source: Source,
    chosen: Tokenizer,
    begin: Sequence[int],
    advance: Callable[[int], None],
) -> None:
    """Appends texts with COLUMNS to a store.

    Args:
      writer: of the store, or of a part of it.
      pieces: of texts, as `read_pieces` yields them.
      source: where they are from.
      chosen: the tokenizer.
      begin: ids before each text; after each is the end-of-text id.
      advance: is called with the number of characters of each piece.
    """
    dtype = token_files.known_dtype(chosen)
    counter = _LineCounter(chosen)
    held: list[np.ndarray] = []
    for batch in _batches(pieces):
        made: dict[str, list[Record]] = {name: [] for name in SPLITS}
        encoded = chosen.encode_batch([piece.text for piece in batch])
        for piece, row in zip(batch, encoded, strict=True):
            if piece.is_first:
                row = [*begin, *row]
                held = []
                counter.start_text()
            if piece.is_last:
                row = [*row, chosen.eos_id]
            held.append(np.asarray(row, dtype))
            is_plain = source.is_plain[piece.file]
            if is_plain:
                counter.add(held[-1], piece.text)
            if piece.is_last:
                lines = counter.columns() if is_plain else NO_LINES
                made[piece.split].append(_make_record(held, piece.file, piece.line, lines))
            advance(len(piece.text))
        for name, records in made.items():
            writer.append(name, records)


def write_runs(writer: StoreWriter, runs: Iterable[token_files.Run]) -> None:
    """Appends documents of token ids with COLUMNS to a store."""
    made: dict[str, list[Record]] = {name: [] for name in SPLITS}
    size = 0
    first: int | None = None
    for run in runs:
        if first is None:
            first = run.token
        if run.is_last:
            made[run.split].append(_make_record([run.ids], run.file, first, NO_LINES))
            first = None
        size += len(run.ids)
        if size > COPIED_TOKENS or not run.is_last:
            for name, records in made.items():
                writer.append(name, records)
                records.clear()
            size = 0
        if not run.is_last:
            writer.begin_entry(run.split, "ids", run.ids)
    for name, records in made.items():
        writer.append(name, records)


def _make_record(ids: Sequence[np.ndarray], file: int, line: int, lines: Record) -> Record:
    joined = ids[0] if len(ids) == 1 else np.concatenate(ids)
    return {"ids": joined, "file": np.asarray(file), "line": np.asarray(line), **lines}


class _LineCounter:
    """Finds the lines at the tokens of a plain text, which is added in pieces."""

    def __init__(self, chosen: Tokenizer):
        texts = chosen.pieces()
        self._newlines = np.asarray([text.count(b"\n") for text in texts])
        self._sizes = np.asarray([len(text) for text in texts])
        self.start_text()

    def start_text(self) -> None:
        self._marks: list[np.ndarray] = []
        self._tokens = 0
        self._lines = 0
        self._is_exact = True

    def add(self, ids: np.ndarray, text: str) -> None:
        counts = self._newlines[ids]
        before = np.cumsum(counts) - counts
        newlines = text.count("\n")
        if counts.sum() != newlines:
            self._is_exact = False
            before = self._estimate(ids, text.encode())
        self._marks.append(self._lines + before[-self._tokens % MARKED :: MARKED])
        self._tokens += len(ids)
        self._lines += newlines

    def _estimate(self, ids: np.ndarray, text: bytes) -> np.ndarray:
        """Estimates the newlines before each token, by the bytes of the tokens before it."""
        sizes = self._sizes[ids]
        place = (np.cumsum(sizes) - sizes) * (len(text) / max(int(sizes.sum()), 1))
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        return np.searchsorted(newlines, place)

    def columns(self) -> Record:
        marks = np.concatenate(self._marks).astype(np.int32)
        return {"marks": marks, "is_exact": np.asarray(self._is_exact)}


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Groups pieces to batches of at least BATCH characters, but for the last."""
    batch = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch
