"""Maps training rows to their files and lines, and a given text to the rows that hold it."""

import functools
import itertools
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import documents, token_files
from flaxformer_lite.data.corpus import Corpus, Records
from flaxformer_lite.data.encoded_rows import LabelledRecords
from flaxformer_lite.data.split import Document, split_of
from flaxformer_lite.storage import compressed, content_cache

MOST = 1000  # most occurrences of a text that are looked up
PLACE = re.compile(r"(.+?)(?::~?|, row |, token )(\d+)")  # the form of `places`
Row = tuple[Any, int]  # the records, and the number of a row in them


class TextOrigins:
    """The places of the training documents of a text, found in one pass over its files and cached.

    Attributes:
      size: bytes of text to read before the first place is known.
    """

    def __init__(self, cfg: DataConfig, corpus: Corpus):
        self._cfg = cfg
        self._source = corpus.source
        self._tokenizer = corpus.tokenizer
        self._tokens = corpus.tokens["train"]
        self._key = corpus.fingerprint
        self.size = corpus.source.size
        # one: for a long text it takes several times its size
        self._bytes = functools.lru_cache(maxsize=1)(self._bytes_before)

    def places(self, rows: Sequence[Row]) -> list[list[str]]:
        """Returns the places of each row's pieces: `FILE:LINE`, `FILE, row 3` or `FILE, token 99`.

        A line of plain text is estimated, and written with a `~`, if the tokenizer does not keep
        all of the text.
        """
        starts_of_rows: list[list[int]] = []
        for records, row in rows:
            pieces = range(int(records.first[row]), int(records.first[row + 1]))
            starts_of_rows.append([int(records.start[piece]) for piece in pieces])
        documents_read = set(map(self._document, itertools.chain.from_iterable(starts_of_rows)))
        lines = self._line_ends(documents_read)
        places = []
        for starts in starts_of_rows:
            unique = dict.fromkeys(self._place(start, lines) for start in starts)
            places.append(list(unique))
        return places

    def rows(self, records: Records, wanted: str) -> np.ndarray:
        """Returns the rows of a packing that hold a document, ascending.

        The document is `FILE:LINE`, `FILE:ROW`, a number or a text. Of a plain text, these are the
        rows of that line.

        Raises:
          ConfigError: the training text has no such document.
        """
        ends = records.start + records.length_of
        hits = []
        for begin, end in self._ranges(wanted):
            hits.append(np.flatnonzero((records.start < end) & (ends > begin)))
        rows = np.searchsorted(records.first, np.concatenate(hits), side="right") - 1
        return np.unique(rows)

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        """The beginning of each document, int64 [documents, 3].

        Columns are the number of its file; its line, row or token there; its size in bytes.
        """

        def sizes() -> Iterator[tuple[int, int, int]]:
            for file, at, document in self._training():
                yield file, at, len("".join(document).encode())

        def write(folder: Path) -> None:
            source = self._source
            begins: Iterable[tuple[int, int, int]] = sizes()
            if source.has_tokens:
                begins = token_files.training_begins(
                    source.files, self._tokenizer, self._cfg.held_out, source.where
                )
            with (folder / "begins").open("wb") as file:
                file.writelines(struct.pack("=3q", *begin) for begin in begins)

        folder = content_cache.folder(self._cfg.cache, f"places-{self._key}", write)
        return np.memmap(folder / "begins", np.int64, "r").reshape(-1, 3)

    def _training(self) -> Iterator[tuple[int, int, Document]]:
        """Yields the training documents, each with the number of its file and its line or row."""
        source = self._source
        split = split_of(source.documents(), self._cfg.held_out, source.where)
        for file, line, document in source.placed():
            for name, part in split.deal([document]):
                if name == "train":
                    yield file, line, part

    def _document(self, token: int) -> int:
        """Returns the number of a token's document; the texts of a document are consecutive."""
        text = int(np.searchsorted(self._tokens.offsets, token, side="right") - 1)
        return text // len(self._source.fields)

    def _place(self, token: int, lines: dict[int, np.ndarray]) -> str:
        number = self._document(token)
        file, at, size = map(int, self._begins[number])
        path = self._source.files[file]
        begin = int(self._tokens.offsets[number])
        if self._source.has_tokens:
            return f"{path}, token {at + token - begin}"
        if number not in lines:
            if documents.is_jsonl(path):
                return f"{path}:{at}"
            return f"{path}, row {at}"
        before, is_exact = self._bytes(number, size)
        line = at + int(np.searchsorted(lines[number], before[token - begin]))
        if is_exact:
            return f"{path}:{line}"
        return f"{path}:~{line}"

    def _bytes_before(self, text: int, size: int) -> tuple[np.ndarray, bool]:
        """Counts the bytes of a text before each of its tokens.

        Also returns whether the tokenizer keeps all bytes; if not, the counts are estimated.
        """
        begin, end = self._tokens.offsets[text : text + 2]
        before = np.cumsum(np.concatenate([[0], self._sizes[self._tokens.ids[begin:end]]]))
        return before * (size / max(int(before[-1]), 1)), before[-1] == size

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.asarray([len(piece) for piece in self._tokenizer.pieces()])

    def _line_ends(self, numbers: set[int]) -> dict[int, np.ndarray]:
        """Returns the ends of lines, in bytes, of those documents that are plain text."""
        source = self._source
        wanted = {tuple(map(int, self._begins[number][:2])): number for number in numbers}
        ends = {}
        for file in {file for file, _ in wanted}:
            if not self._is_plain(file):
                continue
            for line, (text,) in documents.read(source.files[file], source.where, source.fields):
                if (file, line) in wanted:
                    letters = np.frombuffer(text.encode(), np.uint8)
                    ends[wanted[file, line]] = np.flatnonzero(letters == ord("\n"))
        return ends

    def _is_plain(self, file: int) -> bool:
        path = self._source.files[file]
        return not (
            self._source.has_tokens
            or documents.is_jsonl(path)
            or compressed.kind(path) in documents.TABLES
        )

    def _ranges(self, wanted: str) -> list[tuple[int, int]]:
        """Returns the token ranges, as (begin, end), of what `rows` looks for."""
        place = PLACE.fullmatch(wanted)
        files = []
        if place:
            files = [i for i, path in enumerate(self._source.files) if _is(str(path), place[1])]
        ranges = []
        if wanted.isdecimal():
            if int(wanted) < len(self._begins):
                ranges.append(self._all(int(wanted)))
        elif place and files:
            for file in files:
                ranges += self._near(file, int(place[2]))
        elif not self._source.has_tokens:
            ranges = list(itertools.islice(self._spelled(wanted), MOST))
        if not ranges:
            raise ConfigError(
                f"--document={wanted}: not in the training text of {self._source.where}, or held"
                f" out; name a FILE:LINE, one of {len(self._begins)} documents from 0, or words of"
                " the text."
            )
        return ranges

    def _all(self, number: int) -> tuple[int, int]:
        texts = len(self._source.fields)
        offsets = self._tokens.offsets
        return int(offsets[number * texts]), int(offsets[(number + 1) * texts])

    def _near(self, file: int, at: int) -> Iterator[tuple[int, int]]:
        """Yields the tokens of a line, row or token of a file, if it is there and not held out."""
        of_file = np.flatnonzero(self._begins[:, 0] == file)
        last_before = int(np.searchsorted(self._begins[of_file, 1], at, side="right")) - 1
        if last_before < 0:
            return
        number = int(of_file[last_before])
        _, first, size = map(int, self._begins[number])
        begin, end = self._all(number)
        offset = at - first
        if self._source.has_tokens and offset < end - begin:
            yield begin + offset, begin + offset + 1
        elif self._is_plain(file):
            edges = [0, *(self._line_ends({number})[number] + 1).tolist(), size]
            if offset < len(edges) - 1 and edges[offset] < size:
                yield self._tokens_of(number, edges[offset], edges[offset + 1])
        elif offset == 0:
            yield begin, end

    def _spelled(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Yields the tokens of each occurrence of a text."""
        pattern = re.compile(re.escape(wanted))
        length = len(wanted.encode())
        for number, (_, _, document) in enumerate(self._training()):
            for text, words in enumerate(document, start=number * len(document)):
                for match in pattern.finditer(words):
                    begin = len(words[: match.start()].encode())
                    yield self._tokens_of(text, begin, begin + length, len(words.encode()))

    def _tokens_of(
        self, text: int, start: int, stop: int, size: int | None = None
    ) -> tuple[int, int]:
        """Returns the tokens of some bytes of a text."""
        begin = int(self._tokens.offsets[text])
        if size is None:
            size = int(self._begins[text, 2])
        before, _ = self._bytes(text, size)
        first = int(np.searchsorted(before, start, "right")) - 1
        last = int(np.searchsorted(before, stop))
        return begin + first, begin + max(last, first + 1)


class TableOrigins:
    """The rows of a table that the examples of a task are made from.

    Attributes:
      size: bytes of text to read: none, as a table is in memory.
    """

    def __init__(self, cfg: DataConfig):
        self._cfg = cfg
        self.size = 0

    def places(self, rows: Sequence[Row]) -> list[list[str]]:
        """Returns the places of the table rows that each example is made from: `FILE, row 3`."""
        places = []
        for records, example in rows:
            numbers = [_number(records, row) for row in _rows_of(records, example)]
            places.append([f"{self._cfg.path}, row {number}" for number in numbers])
        return places

    def rows(self, records: LabelledRecords, wanted: str) -> np.ndarray:
        """Returns the examples of a table row, by its number or place, or of all rows with a text.

        They are ascending.

        Raises:
          ConfigError: there is no such row to train on.
        """
        place = PLACE.fullmatch(wanted)
        number = 0
        if wanted.isdecimal():
            number = int(wanted)
        elif place and _is(self._cfg.path, place[1]):
            number = int(place[2])

        def matches(row: int) -> bool:
            if number:
                return number == _number(records, row)
            return wanted in json.dumps(records.rows[row], default=str, ensure_ascii=False)

        chosen = {row for row in range(len(records.rows)) if matches(row)}
        examples = [i for i in range(len(records)) if not chosen.isdisjoint(_rows_of(records, i))]
        if not examples:
            raise ConfigError(
                f"--document={wanted}: no training row of {records.table.where} matches, or it is"
                " held out; name a number or words of the row."
            )
        return np.asarray(examples)


def _rows_of(records: LabelledRecords, example: int) -> list[int]:
    """Returns the rows that an example is made from; a packed one has several."""
    if len(records.row_of):
        return [int(records.row_of[example])]
    return sorted({piece.row for piece in records.features[example]})


def _number(records: LabelledRecords, row: int) -> int:
    return records.table.number(row)


def _is(path: str | Path, name: str) -> bool:
    """Returns whether a name is that of a file, or the end of its path or address."""
    return Path(str(path)).parts[-len(Path(name).parts) :] == Path(name).parts
