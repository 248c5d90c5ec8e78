"""Names the file and line of a row of training, and finds the rows that hold a line."""

import functools
import re
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data.encoded_rows import LabelledRecords
from flaxformer_lite.data.source import TABLES
from flaxformer_lite.data.text_examples import Corpus
from flaxformer_lite.data.text_records import Records
from flaxformer_lite.data.tokenizing import MARKED
from flaxformer_lite.storage import compressed

PLACE = re.compile(r"(.+?)(?::~?|, row |, token )(\d+)")  # the form of `places`


class TextPlaces:
    """The places of the training documents of a text, as they are stored with its tokens."""

    def __init__(self, corpus: Corpus):
        self._source = corpus.source
        self._tokenizer = corpus.tokenizer
        tokens = corpus.tokens["train"]
        self._ids = tokens.ids
        self._offsets = tokens.offsets
        self._store = tokens.store
        count = len(tokens.offsets) - 1
        self._files = tokens.store.values("file")[:count]
        self._begins = tokens.store.values("line")[:count]

    def places(self, records: Records, row: int) -> list[str]:
        """Returns the places of a row's pieces: `FILE:LINE`, `FILE, row 3` or `FILE, token 99`.

        A line of plain text is estimated, and written with a `~`, if the tokenizer does not keep
        newlines.
        """
        places = []
        for piece in records.pieces_of(row):
            text = int(records.document[piece])
            start = int(records.start[piece]) - int(self._offsets[text])
            places.append(self._place(text, start))
        return list(dict.fromkeys(places))

    def rows(self, records: Records, wanted: str) -> np.ndarray:
        """Returns the rows of a plan that hold a document, ascending.

        The document is `FILE:LINE`, `FILE:ROW` or a number. Of a plain text, these are the rows of
        that line.

        Raises:
          ConfigError: the training text has no such document.
        """
        ends = records.start + records.length_of
        hits = []
        for begin, end in self._ranges(wanted):
            hits.append(np.flatnonzero((records.start < end) & (ends > begin)))
        rows = np.searchsorted(records.first, np.concatenate(hits), side="right") - 1
        return np.unique(rows)

    def _place(self, text: int, token: int) -> str:
        path = self._source.files[self._files[text]]
        line = int(self._begins[text]) + int(self._lines(text, token, token + 1)[0])
        if self._source.has_tokens:
            return f"{path}, token {line}"
        if compressed.kind(path) in TABLES:
            return f"{path}, row {line}"
        if self._store.entry(text, "is_exact"):
            return f"{path}:{line}"
        return f"{path}:~{line}"

    def _lines(self, text: int, begin: int, end: int) -> np.ndarray:
        """Returns how many lines, or token ids, of a text are before each of some tokens."""
        tokens = np.arange(begin, end)
        if self._source.has_tokens:
            return tokens
        if not self._source.is_plain[self._files[text]]:
            return np.zeros_like(tokens)
        ids = self._ids[self._offsets[text] : self._offsets[text + 1]]
        tokens = np.minimum(tokens, max(len(ids) - 2, 0))  # the last is no text
        marks = self._store.entry(text, "marks")
        if not self._store.entry(text, "is_exact"):
            return np.interp(tokens, np.arange(len(marks)) * MARKED, marks).astype(np.int64)
        first = tokens[0] // MARKED
        newlines = self._newlines[ids[first * MARKED : tokens[-1]]]
        lines = marks[first] + np.cumsum(np.concatenate([[0], newlines]))
        return lines[tokens - first * MARKED]

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        return self._tokenizer.pieces()

    @functools.cached_property
    def _newlines(self) -> np.ndarray:
        return np.asarray([piece.count(b"\n") for piece in self._pieces])

    def _ranges(self, wanted: str) -> list[tuple[int, int]]:
        """Returns the token ranges, as (begin, end), of what `rows` looks for."""
        place = PLACE.fullmatch(wanted)
        texts = len(self._source.fields)
        count = len(self._files) // texts
        ranges = []
        if wanted.isdecimal() and int(wanted) < count:
            first = int(wanted) * texts
            ranges.append((int(self._offsets[first]), int(self._offsets[first + texts])))
        elif place:
            paths = self._source.files
            files = [number for number, path in enumerate(paths) if _is(str(path), place[1])]
            ranges = self._tokens_at(files, int(place[2]))
        if not ranges:
            raise ConfigError(
                f"--document={wanted}: not in the training text of {self._source.where}, or held"
                f" out; name a FILE:LINE, as grep -n prints it, or one of {count} documents from 0."
            )
        return ranges

    def _tokens_at(self, files: list[int], at: int) -> list[tuple[int, int]]:
        """Returns the tokens of a line, row or token of files, where they are not held out."""
        until = np.append(self._begins[1:], at)  # where the next text of the file begins
        until[:-1][self._files[1:] != self._files[:-1]] = at
        found = np.isin(self._files, files) & (self._begins <= at) & (at <= until)
        ranges = []
        for text in np.flatnonzero(found).tolist():
            start, stop = self._offsets[text : text + 2].tolist()
            begin, end = self._tokens_of_line(text, at - int(self._begins[text]), stop - start)
            if begin < stop - start:
                ranges.append((start + begin, start + end))
        return ranges

    def _tokens_of_line(self, text: int, line: int, size: int) -> tuple[int, int]:
        """Returns the range of a line of a text; it begins at `size` if the text is shorter."""
        if self._source.has_tokens:
            return line, line + 1
        lines = self._lines(text, 0, size)
        if line > lines[-1]:
            return size, size
        begin, end = np.searchsorted(lines, [line, line + 1]).tolist()
        # The token before may reach into the line.
        before = self._pieces[self._ids[self._offsets[text] + begin - 1]]
        if begin and (begin == end or not before.endswith(b"\n")):
            begin -= 1
        return begin, max(end, begin + 1)


class TablePlaces:
    """The rows of a table that the examples of a task are made from."""

    def __init__(self, cfg: DataConfig):
        self._cfg = cfg

    def places(self, records: LabelledRecords, example: int) -> list[str]:
        """Returns the places of the table rows that an example is made from: `FILE, row 3`."""
        numbers = [records.table.number(row) for row in records.rows_of(example)]
        return [f"{self._cfg.path}, row {number}" for number in numbers]

    def rows(self, records: LabelledRecords, wanted: str) -> np.ndarray:
        """Returns the examples of a table row, by its number or place, ascending.

        Raises:
          ConfigError: there is no such row to train on.
        """
        place = PLACE.fullmatch(wanted)
        number = 0
        if wanted.isdecimal():
            number = int(wanted)
        elif place and _is(self._cfg.path, place[1]):
            number = int(place[2])
        chosen = {row for row in range(len(records.rows)) if records.table.number(row) == number}
        examples = [i for i in range(len(records)) if not chosen.isdisjoint(records.rows_of(i))]
        if not examples:
            raise ConfigError(
                f"--document={wanted}: no training row of {records.table.where} has this number, or"
                " it is held out; name one from 1."
            )
        return np.asarray(examples)


def _is(path: str | Path, name: str) -> bool:
    """Returns whether a name is a file's, or the end of its path or address."""
    return Path(str(path)).parts[-len(Path(name).parts) :] == Path(name).parts
