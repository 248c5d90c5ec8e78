"""Where training rows come from: the file and line of each piece of text, and the rows that hold a
given text."""

import functools
import itertools
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import documents, token_files
from flaxformer_lite.data.corpus import Corpus
from flaxformer_lite.data.split import Document, split_of
from flaxformer_lite.storage import compressed, content_cache

MOST = 1000  # places where a text is spelled that are looked up
PLACE = re.compile(r"(.+?)(?::~?|, row |, token )(\d+)")  # as `places` writes them
Row = tuple[Any, int]  # the records, and the number of a row in them


class TextOrigins:
    """The places of the training documents of a text; they are found in one pass over its files,
    and cached.

    Attributes:
      size: bytes of text to look through for the first place.
    """

    def __init__(self, cfg: DataConfig, corpus: Corpus):
        self._cfg = cfg
        self._source = corpus.source
        self._known = corpus.tokenizer
        self._tokens = corpus.tokens["train"]
        self._key = corpus.fingerprint
        self.size = corpus.source.size
        # of a long text, several times its size
        self._bytes = functools.lru_cache(maxsize=1)(self._bytes_before)

    def places(self, rows: Sequence[Row]) -> list[list[str]]:
        """Returns the places of the pieces of each row: `FILE:LINE`, or `FILE, row 3`, or `FILE,
        token 1234`.

        A line of plain text has a `~` where the tokenizer does not keep all of the text, so that it
        is estimated.
        """
        pieces = [
            range(int(records.first[row]), int(records.first[row + 1])) for records, row in rows
        ]
        at = [
            [int(records.start[p]) for p in own]
            for (records, _), own in zip(rows, pieces, strict=True)
        ]
        lines = self._line_ends({self._document(start) for starts in at for start in starts})
        return [list(dict.fromkeys(self._place(start, lines) for start in starts)) for starts in at]

    def rows(self, records: Any, wanted: str) -> np.ndarray:
        """Returns the rows of a packing that hold a document `FILE:LINE` or `FILE:ROW`, one by
        number, or a text; ascending.

        Of a plain text, these are the rows of that line.

        Raises:
          ConfigError: the training text has no such document.
        """
        ends = records.start + records.length_of
        hits = [
            np.flatnonzero((records.start < end) & (ends > begin))
            for begin, end in self._ranges(wanted)
        ]
        return np.unique(np.searchsorted(records.first, np.concatenate(hits), side="right") - 1)

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        """Where each document begins: the number of its file, its line, row or token there, its
        bytes; int64 [documents, 3]."""

        def write(folder: Any) -> None:
            if self._source.has_tokens:
                args = self._source.files, self._known, self._cfg.held_out, self._source.where
                found: Any = token_files.training_begins(*args)
            else:
                found = (
                    (*place, len("".join(document).encode()))
                    for *place, document in self._training()
                )
            with (folder / "begins").open("wb") as file:
                file.writelines(struct.pack("=3q", *one) for one in found)

        folder = content_cache.folder(self._cfg.cache, f"places-{self._key}", write)
        return np.memmap(folder / "begins", np.int64, "r").reshape(-1, 3)

    def _training(self) -> Iterator[tuple[int, int, Document]]:
        """Yields the training documents, each with the number of its file and its line or row."""
        source = self._source
        split = split_of(source.documents(), self._cfg.held_out, source.where)
        for file, line, document in source.placed():
            yield from (
                (file, line, part) for name, part in split.deal([document]) if name == "train"
            )

    def _document(self, token: int) -> int:
        """Returns the number of the document that a token is of, whose texts are one after
        another."""
        return int(np.searchsorted(self._tokens.offsets, token, side="right") - 1) // len(
            self._source.fields
        )

    def _place(self, token: int, lines: dict[int, np.ndarray]) -> str:
        number = self._document(token)
        file, at, size = map(int, self._begins[number])
        path = self._source.files[file]
        begin = int(self._tokens.offsets[number])
        if self._source.has_tokens:
            return f"{path}, token {at + token - begin}"
        if number not in lines:
            return f"{path}:{at}" if documents.is_jsonl(path) else f"{path}, row {at}"
        before, is_exact = self._bytes(number, size)
        line = at + int(np.searchsorted(lines[number], before[token - begin]))
        return f"{path}:{line}" if is_exact else f"{path}:~{line}"

    def _bytes_before(self, text: int, size: int) -> tuple[np.ndarray, bool]:
        """Returns how many bytes of a text come before each of its tokens, and whether the
        tokenizer keeps all of them."""
        begin, end = self._tokens.offsets[text : text + 2]
        before = np.cumsum(np.concatenate([[0], self._sizes[self._tokens.ids[begin:end]]]))
        return before * (size / max(int(before[-1]), 1)), before[-1] == size

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.asarray([len(piece) for piece in self._known.pieces()])

    def _line_ends(self, numbers: set[int]) -> dict[int, np.ndarray]:
        """Returns where the lines end, in bytes, of those of the documents that are plain text."""
        wanted = {
            (int(self._begins[number][0]), int(self._begins[number][1])): number
            for number in numbers
        }
        found = {}
        for file in {file for file, _ in wanted}:
            if self._is_plain(file):
                for line, (text,) in documents.read(
                    self._source.files[file], self._source.where, self._source.fields
                ):
                    if (file, line) in wanted:
                        found[wanted[file, line]] = np.flatnonzero(
                            np.frombuffer(text.encode(), np.uint8) == ord("\n")
                        )
        return found

    def _is_plain(self, file: int) -> bool:
        path = self._source.files[file]
        return not (
            self._source.has_tokens
            or documents.is_jsonl(path)
            or compressed.kind(path) in documents.TABLES
        )

    def _ranges(self, wanted: str) -> list[tuple[int, int]]:
        """Returns the tokens, each from one to before another, of what `rows` looks for."""
        place = PLACE.fullmatch(wanted)
        found = []
        if wanted.isdecimal():
            found = [self._all(int(wanted))] if int(wanted) < len(self._begins) else []
        elif place and (
            files := [i for i, path in enumerate(self._source.files) if _is(str(path), place[1])]
        ):
            found = [near for file in files for near in self._near(file, int(place[2]))]
        elif not self._source.has_tokens:
            found = list(itertools.islice(self._spelled(wanted), MOST))
        if not found:
            raise ConfigError(
                f"--document={wanted}: not in the training text of {self._source.where}, or held"
                f" out; name a FILE:LINE, one of {len(self._begins)} documents from 0, or words of"
                " the text."
            )
        return found

    def _all(self, number: int) -> tuple[int, int]:
        texts = len(self._source.fields)
        offsets = self._tokens.offsets
        return int(offsets[number * texts]), int(offsets[(number + 1) * texts])

    def _near(self, file: int, at: int) -> Iterator[tuple[int, int]]:
        """Yields the tokens of a line, row or token of a file, if it is there and not held out."""
        own = np.flatnonzero(self._begins[:, 0] == file)
        place = int(np.searchsorted(self._begins[own, 1], at, side="right")) - 1
        if place < 0:
            return
        number = int(own[place])
        _, first, size = map(int, self._begins[number])
        begin, end = self._all(number)
        if self._source.has_tokens and at - first < end - begin:
            yield begin + at - first, begin + at - first + 1
        elif self._is_plain(file):
            edges = [0, *(self._line_ends({number})[number] + 1).tolist(), size]
            if at - first < len(edges) - 1 and edges[at - first] < size:
                yield self._tokens_of(number, *edges[at - first : at - first + 2])
        elif at == first:
            yield begin, end

    def _spelled(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Yields the tokens of each place where the text is spelled so."""
        for number, (_, _, document) in enumerate(self._training()):
            for text, words in enumerate(document, start=number * len(document)):
                for match in re.finditer(re.escape(wanted), words):
                    begin = len(words[: match.start()].encode())
                    yield self._tokens_of(
                        text, begin, begin + len(wanted.encode()), len(words.encode())
                    )

    def _tokens_of(
        self, text: int, start: int, stop: int, size: int | None = None
    ) -> tuple[int, int]:
        """Returns the tokens of some bytes of a text."""
        begin = int(self._tokens.offsets[text])
        before, _ = self._bytes(text, int(self._begins[text, 2]) if size is None else size)
        first = int(np.searchsorted(before, start, "right")) - 1
        last = int(np.searchsorted(before, stop))
        return begin + first, begin + max(last, first + 1)


class TableOrigins:
    """The rows of a table that the examples of a task are made from.

    Attributes:
      size: bytes of text to look through, none as a table is in memory.
    """

    def __init__(self, cfg: DataConfig):
        self._cfg = cfg
        self.size = 0

    def places(self, rows: Sequence[Row]) -> list[list[str]]:
        """Returns the place of each row of a table that is in an example: `FILE, row 3`."""
        numbers = (
            [_number(records, own) for own in _rows_of(records, row)] for records, row in rows
        )
        return [[f"{self._cfg.path}, row {number}" for number in own] for own in numbers]

    def rows(self, records: Any, wanted: str) -> np.ndarray:
        """Returns the examples of a row of the table, by its number or place, or of all rows with a
        text; ascending.

        Raises:
          ConfigError: there is no such row to train on.
        """
        place = PLACE.fullmatch(wanted)
        number = (
            int(wanted)
            if wanted.isdecimal()
            else int(place[2])
            if place and _is(self._cfg.path, place[1])
            else 0
        )

        def matches(row: int) -> bool:
            if number:
                return number == _number(records, row)
            return wanted in json.dumps(records.rows[row], default=str, ensure_ascii=False)

        chosen = {row for row in range(len(records.rows)) if matches(row)}
        found = [i for i in range(len(records)) if not chosen.isdisjoint(_rows_of(records, i))]
        if not found:
            raise ConfigError(
                f"--document={wanted}: no training row of {records.table.where} is like that, or it"
                " is held out; name a number or words of the row."
            )
        return np.asarray(found)


def _rows_of(records: Any, example: int) -> list[int]:
    """Returns the rows that an example is made from; a packed one has several."""
    if len(records.row_of):
        return [int(records.row_of[example])]
    return sorted({piece.row for piece in records.features[example]})


def _number(records: Any, row: int) -> int:
    return records.table.number(row)


def _is(path: Any, name: str) -> bool:
    """Returns whether a name is that of a file, or the end of its path or address."""
    return Path(str(path)).parts[-len(Path(name).parts) :] == Path(name).parts
