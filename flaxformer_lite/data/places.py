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
        self._tokens = corpus.tokens["train"]
        self._store = self._tokens.store

    def places(self, records: Records, row: int) -> list[str]:
        """Returns the places of a row's pieces: `FILE:LINE`, `FILE, row 3` or `FILE, token 99`.

        A line of plain text is estimated, and written with a `~`, if the tokenizer does not keep
        newlines.
        """
        places = []
        for piece in records.pieces_of(row):
            text = int(records.document[piece])
            start = int(records.start[piece]) - int(self._tokens.offsets[text])
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
        file = int(self._files[text])
        path = self._source.files[file]
        line = int(self._begins[text])
        if self._source.has_tokens:
            return f"{path}, token {line + token}"
        if compressed.kind(path) in TABLES:
            return f"{path}, row {line}"
        if not self._source.is_plain(file):
            return f"{path}:{line}"
        line += int(self._lines(text, token, token + 1)[0])
        return f"{path}:{line}" if self._is_exact(text) else f"{path}:~{line}"

    @functools.cached_property
    def _files(self) -> np.ndarray:
        return self._store.values("file")[: len(self._tokens.offsets) - 1]

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        return self._store.values("line")[: len(self._tokens.offsets) - 1]

    def _is_exact(self, text: int) -> bool:
        return bool(self._store.entry(text, "is_exact"))

    def _ids(self, text: int) -> np.ndarray:
        begin, end = self._tokens.offsets[text : text + 2]
        return self._tokens.ids[begin:end]

    def _lines(self, text: int, begin: int, end: int) -> np.ndarray:
        """Returns how many lines of a plain text end before each of some of its tokens."""
        ids = self._ids(text)
        tokens = np.minimum(np.arange(begin, end), max(len(ids) - 2, 0))  # the last is no text
        marks = self._store.entry(text, "marks")
        if not self._is_exact(text):
            return np.interp(tokens, np.arange(len(marks)) * MARKED, marks).astype(np.int64)
        first = tokens[0] // MARKED
        counts = self._newlines[ids[first * MARKED : tokens[-1]]]
        lines = marks[first] + np.cumsum(np.concatenate([[0], counts]))
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
        files = []
        if place:
            files = [i for i, path in enumerate(self._source.files) if _is(str(path), place[1])]
        ranges = []
        texts = len(self._source.fields)
        count = len(self._files) // texts
        if wanted.isdecimal():
            if int(wanted) < count:
                first = int(wanted) * texts
                begin, end = self._tokens.offsets[[first, first + texts]].tolist()
                ranges.append((begin, end))
        elif place and files:
            ranges = self._tokens_at(files, int(place[2]))
        if not ranges:
            raise ConfigError(
                f"--document={wanted}: not in the training text of {self._source.where}, or held"
                f" out; name a FILE:LINE, as grep -n prints it, or one of {count} documents from 0."
            )
        return ranges

    def _tokens_at(self, files: list[int], at: int) -> list[tuple[int, int]]:
        """Returns the tokens of a line, row or token of files, where they are not held out."""
        offsets = self._tokens.offsets
        in_files = np.isin(self._files, files)
        if self._source.has_tokens:
            tokens = at - self._begins
            found = np.flatnonzero(in_files & (tokens >= 0) & (tokens < np.diff(offsets)))
            return [(int(token), int(token) + 1) for token in offsets[found] + tokens[found]]
        plain = np.asarray([self._source.is_plain(file) for file in range(len(self._source.files))])
        is_plain = plain[self._files]
        found = np.flatnonzero(in_files & ~is_plain & (self._begins == at))
        ranges = [(int(offsets[text]), int(offsets[text + 1])) for text in found]
        # the line where the next text of the file begins
        until = np.append(self._begins[1:], at)
        until[:-1][self._files[1:] != self._files[:-1]] = at
        for text in np.flatnonzero(in_files & is_plain & (self._begins <= at) & (at <= until)):
            ranges += self._tokens_of_line(int(text), at - int(self._begins[text]))
        return ranges

    def _tokens_of_line(self, text: int, line: int) -> list[tuple[int, int]]:
        """Returns the tokens of a line of a plain text; [] if the text is shorter."""
        ids = self._ids(text)
        lines = self._lines(text, 0, len(ids))
        if line > lines[-1]:
            return []
        begin, end = np.searchsorted(lines, [line, line + 1]).tolist()
        # The token before may reach into the line.
        if begin and (begin == end or not self._pieces[ids[begin - 1]].endswith(b"\n")):
            begin -= 1
        start = int(self._tokens.offsets[text])
        return [(start + begin, start + max(end, begin + 1))]


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
