"""Names the file and line of a row of training, and finds the rows that hold a line."""

import functools
import re
from pathlib import Path

import numpy as np

from flaxformer_lite.data.documents import MARKED_TOKENS
from flaxformer_lite.data.records import Records, Stream
from flaxformer_lite.objectives.row_plans import RowPlan

PLACE = re.compile(r"(?:(.+?)(?::~?|, row |, token ))?(\d+)")  # the form of `Source.place`


class Places:
    """The places of the training rows of a source, as they are stored."""

    def __init__(self, stream: Stream):
        self._source = stream.source
        self._records = stream.splits["train"]
        self._store = self._records.store

    def places(self, records: Records, row: int) -> list[str]:
        """Returns the places of a row's pieces: `FILE:LINE`, `FILE, row 3` or `FILE, token 99`.

        A line of plain text is estimated, and written with a `~`, if the tokenizer does not keep
        newlines.
        """
        plan = records.plan
        if plan is None or not plan.cuts_documents:
            whole = records.records_of(row).tolist()
            return [self._source.place(*self._origin(records, number)) for number in whole]
        places = []
        for piece in range(*plan.first[[row, row + 1]].tolist()):
            text = int(plan.document[piece])
            token = int(plan.start[piece]) - int(self._offsets[text])
            line = int(self._begins[text]) + int(self._lines(text, token, token + 1)[0])
            is_exact = bool(self._store.entry(text, "is_exact"))
            places.append(self._source.place(int(self._files[text]), line, is_exact=is_exact))
        return list(dict.fromkeys(places))

    def rows(self, records: Records, wanted: str) -> np.ndarray:
        """Returns the rows of a plan that hold a line, ascending; none if it is held out.

        Args:
          records: the training rows in any plan.
          wanted: `FILE:LINE` or `FILE, row 3`, where the end of the path is enough; or the number
            alone, in any file. Of a row of several lines, it is the first.
        """
        place = PLACE.fullmatch(wanted)
        if not place:
            return np.zeros(0, np.int64)
        paths = enumerate(self._source.files)
        files = [n for n, path in paths if not place[1] or _is(str(path), place[1])]
        if records.plan is None or not records.plan.cuts_documents:
            return self._rows_of_whole(records, files, int(place[2]))
        return self._rows_of_pieces(records.plan, files, int(place[2]))

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        return self._store.offsets("ids")[: len(self._files) + 1]

    @functools.cached_property
    def _files(self) -> np.ndarray:
        return self._records.column("file")

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        return self._records.column("line")

    @functools.cached_property
    def _texts(self) -> list[bytes]:
        return self._records.tokenizer.pieces()

    @functools.cached_property
    def _newlines(self) -> np.ndarray:
        return np.asarray([text.count(b"\n") for text in self._texts])

    def _origin(self, records: Records, number: int) -> tuple[int, int]:
        if records.table is not None:
            return records.table.rows.origin(int(records.table_rows[number]))
        return int(self._files[number]), int(self._begins[number])

    def _rows_of_whole(self, records: Records, files: list[int], line: int) -> np.ndarray:
        if records.table is not None:
            rows = records.table.rows.find(files, line)
            found = np.flatnonzero(np.isin(records.table_rows, rows))
        else:
            found = np.flatnonzero(np.isin(self._files, files) & (self._begins == line))
        if records.plan is None:
            return found
        places = np.flatnonzero(np.isin(records.plan.document, found))
        return np.unique(np.searchsorted(records.plan.first, places, side="right") - 1)

    def _rows_of_pieces(self, plan: RowPlan, files: list[int], line: int) -> np.ndarray:
        ends = plan.start + plan.length
        hits = [np.zeros(0, np.int64)]
        for begin, end in self._tokens_at(files, line):
            hits.append(np.flatnonzero((plan.start < end) & (ends > begin)))
        return np.unique(np.searchsorted(plan.first, np.concatenate(hits), side="right") - 1)

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
        before = self._texts[self._ids(text)[begin - 1]]
        if begin and (begin == end or not before.endswith(b"\n")):
            begin -= 1
        return begin, max(end, begin + 1)

    def _ids(self, text: int) -> np.ndarray:
        return self._store.values("ids")[self._offsets[text] : self._offsets[text + 1]]

    def _lines(self, text: int, begin: int, end: int) -> np.ndarray:
        """Returns how many lines, or token ids, of a text are before each of some tokens."""
        tokens = np.arange(begin, end)
        if self._source.has_tokens:
            return tokens
        if not self._source.is_plain[self._files[text]]:
            return np.zeros_like(tokens)
        ids = self._ids(text)
        tokens = np.minimum(tokens, max(len(ids) - 2, 0))  # the last is no text
        marks = self._store.entry(text, "marks")
        if not self._store.entry(text, "is_exact"):
            return np.interp(tokens, np.arange(len(marks)) * MARKED_TOKENS, marks).astype(np.int64)
        first = tokens[0] // MARKED_TOKENS
        newlines = self._newlines[ids[first * MARKED_TOKENS : tokens[-1]]]
        lines = marks[first] + np.cumsum(np.concatenate([[0], newlines]))
        return lines[tokens - first * MARKED_TOKENS]


def _is(path: str, name: str) -> bool:
    """Returns whether a name is a file's, or the end of its path or address."""
    return Path(path).parts[-len(Path(name).parts) :] == Path(name).parts
