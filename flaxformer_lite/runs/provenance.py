"""Maps training rows to their files and lines, and a line to the rows that hold it."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import documents, token_files
from flaxformer_lite.data.corpus import Corpus, Records
from flaxformer_lite.data.encoded_rows import LabelledRecords
from flaxformer_lite.data.split import Document, split_of
from flaxformer_lite.storage import compressed, content_cache

PLACE = re.compile(r"(.+?)(?::~?|, row |, token )(\d+)")  # the form of `places`
# Where a document, or a line of a plain text, begins.
BEGIN = np.dtype(
    [
        ("file", np.int32),
        ("at", np.int64),  # its line, row or token there, from 1, 1 and 0
        ("token", np.int64),  # the first that begins in it, counted over all documents
        ("splits_token", np.bool),  # whether the token before reaches into it
        ("is_exact", np.bool),  # or an estimate, as the tokenizer does not keep all of the text
    ]
)


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

    def places(self, records: Records, row: int) -> list[str]:
        """Returns the places of a row's pieces: `FILE:LINE`, `FILE, row 3` or `FILE, token 99`.

        A line of plain text is estimated, and written with a `~`, if the tokenizer does not keep
        all of the text.
        """
        starts = records.start[int(records.first[row]) : int(records.first[row + 1])]
        return list(dict.fromkeys(self._place(int(start)) for start in starts))

    def rows(self, records: Records, wanted: str) -> np.ndarray:
        """Returns the rows of a packing that hold a document, ascending.

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

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        """The beginnings of all documents and lines, of dtype BEGIN, in the order of the tokens."""

        def write(folder: Path) -> None:
            with (folder / "begins").open("wb") as file:
                for begins in self._find_begins():
                    file.write(np.asarray(begins, BEGIN).tobytes())

        folder = content_cache.folder(self._cfg.cache, f"begins-{self._key}", write)
        return np.memmap(folder / "begins", BEGIN, "r")

    @functools.cached_property
    def _first_tokens(self) -> np.ndarray:
        return np.ascontiguousarray(self._begins["token"])

    def _find_begins(self) -> Iterator[list[tuple[int, int, int, bool, bool]]]:
        source = self._source
        if source.has_tokens:
            found = token_files.training_begins(
                source.files, self._tokenizer, self._cfg.held_out, source.where
            )
            for number, (file, at, _) in enumerate(found):
                yield [(file, at, self._tokens_of_document(number)[0], False, True)]
            return
        for number, (file, at, document) in enumerate(self._training()):
            first, _ = self._tokens_of_document(number)
            if not self._is_plain(file):
                yield [(file, at, first, False, True)]
                continue
            text = document[0].encode()
            before, is_exact = self._bytes_before(number, len(text))
            newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
            lines = np.concatenate([[0], newlines[newlines < len(text) - 1] + 1])
            tokens = np.searchsorted(before, lines)
            splits = before[tokens] > lines
            yield [
                (file, at + line, first + token, split, is_exact)
                for line, (token, split) in enumerate(zip(tokens, splits, strict=True))
            ]

    def _training(self) -> Iterator[tuple[int, int, Document]]:
        """Yields the training documents, each with the number of its file and its line or row."""
        source = self._source
        split = split_of(source.documents(), self._cfg.held_out, source.where)
        for file, line, document in source.placed():
            for name, part in split.deal([document]):
                if name == "train":
                    yield file, line, part

    def _place(self, token: int) -> str:
        begin = self._begins[np.searchsorted(self._first_tokens, token, side="right") - 1]
        path = self._source.files[begin["file"]]
        at = int(begin["at"])
        if self._source.has_tokens:
            return f"{path}, token {at + token - int(begin['token'])}"
        if compressed.kind(path) in documents.TABLES:
            return f"{path}, row {at}"
        if begin["is_exact"]:
            return f"{path}:{at}"
        return f"{path}:~{at}"

    def _bytes_before(self, text: int, size: int) -> tuple[np.ndarray, bool]:
        """Counts the bytes of a text before each of its tokens.

        Also returns whether the tokenizer keeps all bytes; if not, the counts are estimated.
        """
        begin, end = self._tokens.offsets[text : text + 2]
        before = np.cumsum(np.concatenate([[0], self._sizes[self._tokens.ids[begin:end]]]))
        return before * (size / max(int(before[-1]), 1)), bool(before[-1] == size)

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.asarray([len(piece) for piece in self._tokenizer.pieces()])

    def _is_plain(self, file: int) -> bool:
        path = self._source.files[file]
        return not (documents.is_jsonl(path) or compressed.kind(path) in documents.TABLES)

    def _ranges(self, wanted: str) -> list[tuple[int, int]]:
        """Returns the token ranges, as (begin, end), of what `rows` looks for."""
        place = PLACE.fullmatch(wanted)
        files = []
        if place:
            files = [i for i, path in enumerate(self._source.files) if _is(str(path), place[1])]
        ranges = []
        count = (len(self._tokens.offsets) - 1) // len(self._source.fields)
        if wanted.isdecimal():
            if int(wanted) < count:
                ranges.append(self._tokens_of_document(int(wanted)))
        elif place and files:
            ranges = self._tokens_at(files, int(place[2]))
        if not ranges:
            raise ConfigError(
                f"--document={wanted}: not in the training text of {self._source.where}, or held"
                f" out; name a FILE:LINE, as grep -n prints it, or one of {count} documents from 0."
            )
        return ranges

    def _tokens_of_document(self, number: int) -> tuple[int, int]:
        texts = len(self._source.fields)
        offsets = self._tokens.offsets
        return int(offsets[number * texts]), int(offsets[(number + 1) * texts])

    def _tokens_at(self, files: list[int], at: int) -> list[tuple[int, int]]:
        """Returns the tokens of a line, row or token of files, where they are not held out."""
        begins = self._begins
        ends = np.append(self._first_tokens[1:], self._tokens.offsets[-1])
        in_files = np.isin(begins["file"], files)
        if self._source.has_tokens:
            tokens = self._first_tokens + at - begins["at"]
            found = np.flatnonzero(in_files & (begins["at"] <= at) & (tokens < ends))
            return [(int(tokens[i]), int(tokens[i]) + 1) for i in found]
        ranges = []
        for i in np.flatnonzero(in_files & (begins["at"] == at)):
            first = int(self._first_tokens[i]) - int(begins["splits_token"][i])
            ranges.append((first, max(int(ends[i]), first + 1)))
        return ranges


class TableOrigins:
    """The rows of a table that the examples of a task are made from.

    Attributes:
      size: bytes of text to read: none, as a table is in memory.
    """

    def __init__(self, cfg: DataConfig):
        self._cfg = cfg
        self.size = 0

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
