"""Rows of files: csv, tsv, json, jsonl, parquet, arrow and CoNLL, each by its suffix.

Text is UTF-8, or UTF-16 if the file begins with its byte order mark (Excel's "Unicode text").

With each row comes its place in the file, from 1: of jsonl and CoNLL the line where it begins, of
others the number of the row.
"""

import codecs
import contextlib
import csv
import functools
import io
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.storage import compressed
from flaxformer_lite.storage.compressed import File
from flaxformer_lite.storage.remote import RemoteFile

LOG = logging.getLogger("flaxformer_lite")
LARGEST = 1 << 31  # most bytes of a .json file, which is read in one piece
MOST_CHARACTERS = 1 << 24  # of one field of csv
# Excel's first line, which names the separator.
NAMED_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
USUAL = "cp1252"  # what Excel writes as "CSV" on most machines
MAX_LINE_CHARACTERS = 1 << 24  # characters of a line
MAX_SHOWN_CHARACTERS = 20  # characters of a line that are shown on each side of what cannot be read
# Columns of CoNLL-U, https://universaldependencies.org/format.html
UNIVERSAL = ("id", "tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"  # the word of CoNLL's lines between documents
Rows = Iterator[tuple[int, Json]]  # with the place of each
Reader = Callable[[File, str], Rows]  # of a file, with what to name in errors


def read_rows(path: File, where: str, columns: Sequence[str] = ()) -> Rows:
    """Yields the rows of a file and their places, as its suffix says, with a few in memory.

    Args:
      path: the file; its kind is one of READERS, or of columnar.KINDS.
      where: the field and value to name in errors.
      columns: those that are needed; files of columns leave out others.

    Raises:
      ConfigError: it cannot be read; names the line where there is one.
    """
    kind = compressed.kind(path)
    if kind in columnar.KINDS:
        return _columns(path, where, kind, columns)
    return READERS[kind](path, where)


def _columns(path: File, where: str, kind: str, columns: Sequence[str]) -> Rows:
    with columnar_content(path, where) as content:
        yield from enumerate(columnar.rows(content, where, kind, columns), start=1)


@contextlib.contextmanager
def columnar_content(path: File, where: str) -> Iterator[columnar.Content]:
    """Opens a parquet or arrow file; one that is compressed as a whole is read into memory."""
    if compressed.compression(path):
        yield compressed.read_unpacked(path, where)
    elif isinstance(path, RemoteFile):
        with path.open("rb") as stream:
            yield stream
    else:
        yield path


def _delimited(usual: str) -> Reader:
    def read(path: File, where: str) -> Rows:
        form = _form_of(path, where, usual)
        if form.unquoted:
            LOG.warning("%s: quotes are read as text, as %s.", where, form.unquoted)
        return enumerate(_cells(path, where, form), start=1)

    return read


class _Form(NamedTuple):
    """How a text file separates values.

    `unquoted` says why quotes at the beginning of values are text; empty: they are not.
    """

    separator: str
    lines_before: int  # the header: none, or the line in which Excel names the separator
    unquoted: str = ""


def _form_of(path: File, where: str, usual: str) -> _Form:
    """Returns the form of a file.

    Values of csv may be in quotes. Those of a file of tabs are in quotes, as Excel and pandas write
    them, if each quote that begins a value is closed at its end; otherwise, as in GLUE's files,
    they are texts that may begin with a lone quote.

    Args:
      path: the file.
      where: the field and value to name in errors.
      usual: the separator, unless the first line lacks it and has a semicolon or tab.
    """
    text = read_lines(path, where, "")
    first = next(text, "")
    named = NAMED_SEPARATOR.fullmatch(first)
    if named:
        return _Form(named[1], 1)
    separator = next((s for s in (usual, ";", "\t") if s in first), usual)
    form = _Form(separator, 0)
    if usual == "," or '"' in first:
        return form
    opening = re.compile(rf'(?:^|{separator})"')
    opened = 0  # the last line in which a quote begins a value

    def watched() -> Iterator[str]:
        nonlocal opened
        for number, line in enumerate(itertools.chain([first], text), start=1):
            if '"' in line and opening.search(line):
                opened = number
            yield line

    lines = _reader(watched(), form)
    is_sound = True
    try:
        count = len(next(lines, []))
        for values in lines:
            # A quote may be closed by that of another value.
            joins = any("\n" in value and separator in value for value in values)
            is_sound = len(values) in (0, count) and not joins
            if not is_sound:
                break
    except csv.Error:
        is_sound = False
    if is_sound or not opened:
        return form
    return form._replace(
        unquoted=f"one that begins a value is not closed at its end (line {opened})"
    )


class _CsvReader(Protocol):
    """The reader of csv, whose class has no public name."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


def _reader(lines: Iterable[str], form: _Form) -> _CsvReader:
    quoting: Literal[0, 3] = csv.QUOTE_NONE if form.unquoted else csv.QUOTE_MINIMAL
    # Python's own limit, 131,072 characters, is less than a long text.
    csv.field_size_limit(MOST_CHARACTERS)
    return csv.reader(lines, delimiter=form.separator, quoting=quoting, strict=True)


def _cells(path: File, where: str, form: _Form) -> Iterator[Json]:
    """Yields the rows of csv or tsv.

    Raises:
      ConfigError: a line has a different number of values from the first, or cannot be read; names
        the line.
    """
    text = read_lines(path, where, "")
    lines = _reader(itertools.islice(text, form.lines_before, None), form)
    begins = 1
    try:
        header = next(lines, [])
        begins = lines.line_num + 1
        if len(set(header)) != len(header):
            raise ConfigError(
                f"{where}: two columns of the same name ({', '.join(map(quote_value, header))})."
            )
        for values in lines:
            begins = lines.line_num + 1
            if not values:
                continue
            if len(values) != len(header):
                quotes = f" Quotes are read as text, as {form.unquoted}." if form.unquoted else ""
                raise ConfigError(
                    f"{where}:{lines.line_num + form.lines_before}: {len(values)} values, but the"
                    f" first line names {len(header)} columns.{quotes}"
                )
            yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        begun = ""
        if begins < lines.line_num:
            begins += form.lines_before
            begun = f" The row begins in line {begins}; is a quote in it not closed?"
        raise ConfigError(
            f"{where}:{lines.line_num + form.lines_before}: cannot be read ({error}).{begun}"
        ) from None


def _conll(universal: bool) -> Reader:
    """Returns the reader of one word and its columns per line, with a blank line after a sentence.

    A sentence is a row, with a list of values per column: `tokens`, the first of the file, and
    `tags`, the last. Those of CoNLL-U have the names of UNIVERSAL; lines of contractions, empty
    nodes and comments are left out.
    """

    def read(path: File, where: str) -> Rows:
        sentence: list[list[str]] = []
        width = len(UNIVERSAL) if universal else 0
        begins = 1
        lines = itertools.chain(read_lines(path, where), [""])
        for number, line in enumerate(lines, start=1):
            line = line.rstrip("\r\n")
            # a column between tabs may contain spaces
            values = line.split("\t") if "\t" in line else line.split()
            if not any(values):
                if sentence:
                    yield begins, _sentence_row(sentence, universal)
                sentence = []
            elif values[0] != DOCUMENT and not (universal and _is_left_out(values[0])):
                width = width or len(values)
                if len(values) != width:
                    raise ConfigError(
                        f"{where}:{number}: {len(values)} columns; each word must have {width}."
                    )
                if not sentence:
                    begins = number
                sentence.append(values)

    return read


def _is_left_out(first: str) -> bool:
    return first.startswith("#") or not first.isdecimal()


def _sentence_row(sentence: list[list[str]], universal: bool) -> Json:
    columns = [list(values) for values in zip(*sentence, strict=True)]
    if universal:
        return dict(list(zip(UNIVERSAL, columns, strict=True))[1:])
    row = {"tokens": columns[0]}
    if len(columns) > 1:
        row["tags"] = columns[-1]
    return row


def _plain(path: File, where: str) -> Rows:
    """Reads CoNLL, or Excel's "Unicode text", which separates values by tabs."""
    if is_utf16(path, where):
        return _delimited("\t")(path, where)
    return _conll(False)(path, where)


def _jsonl(path: File, where: str) -> Rows:
    for number, line in enumerate(read_lines(path, where), start=1):
        if line.strip():
            at = f"{where}:{number}"
            yield number, _object(_json(line.rstrip(), at), at)


def _list(path: File, where: str) -> Rows:
    if compressed.compression(path):
        compressed.read_unpacked(path, where)  # refuses one that is too long
    elif compressed.size(path) > LARGEST:
        raise ConfigError(
            f"{where}: {compressed.size(path):,} bytes of JSON in one piece; write it as jsonl, an"
            " object per line."
        )
    read = _json("".join(read_lines(path, where)), where)
    if isinstance(read, dict) and isinstance(read.get("data"), list):
        read = read["data"]
    if not isinstance(read, list):
        raise ConfigError(
            f"{where}: must hold a list of objects, or an object with such a list under data."
        )
    if read and isinstance(read[0], dict) and "paragraphs" in read[0]:
        yield from enumerate(_squad(read, where), start=1)
        return
    for number, row in enumerate(read, start=1):
        yield number, _object(row, f"{where}: entry {number}")


def _squad(articles: list[Json], where: str) -> Iterator[Json]:
    """Yields one row per question of SQuAD's nested file, with the columns of `datasets`."""
    try:
        paragraphs = itertools.chain.from_iterable(article["paragraphs"] for article in articles)
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                answers = question["answers"]
                yield {
                    "id": question["id"],
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    },
                }
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where}: looks like SQuAD's file, but lacks {error}.") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where_in_text = f"column {error.colno}"
        if error.lineno > 1:
            where_in_text = f"line {error.lineno} {where_in_text}"
        reason = f"{error.msg}, {where_in_text}"
    except (ValueError, RecursionError) as error:  # thousands of digits, or of levels
        reason = str(error).partition(";")[0]
    raise ConfigError(f"{where}: not JSON ({reason}).")


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a JSON {type(value).__name__}; must be an object.")
    return value


READERS: dict[str, Reader] = {
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".json": _list,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".conll": _conll(False),
    ".conllu": _conll(True),
    ".txt": _plain,
}
LINED = (".jsonl", ".ndjson", ".conll", ".conllu", ".txt")


def has_lines(path: File, where: str) -> bool:
    """Returns whether the rows of a file are lines, whose places are not the numbers of rows."""
    kind = compressed.kind(path)
    return kind in LINED and not (kind == ".txt" and is_utf16(path, where))


def is_utf16(path: File, where: str) -> bool:
    """Returns whether a file begins with the byte order mark of UTF-16."""
    with compressed.reading(path, where), compressed.unpacked(path, where) as stream:
        return stream.read(2) in UTF16


def read_lines(path: File, where: str, newline: str = "\n") -> Iterator[str]:
    """Yields the lines of a file, with their ends.

    Args:
      path: the file, which may be compressed.
      where: the field and value to name in errors.
      newline: as in `open`; "" keeps all kinds of line ends.

    Raises:
      ConfigError: a line is longer than MAX_LINE_CHARACTERS; or the file is neither UTF-8 nor
        marked as UTF-16, with the line and how to convert it.
    """
    with compressed.reading(path, where), compressed.unpacked(path, where) as stream:
        encoding = "utf-8-sig"
        if stream.peek(2)[:2] in UTF16:
            encoding = "utf-16"
        try:
            with io.TextIOWrapper(stream, encoding, newline=newline) as text:
                number = 0
                while line := text.readline(MAX_LINE_CHARACTERS + 1):
                    number += 1
                    if len(line) > MAX_LINE_CHARACTERS:
                        raise ConfigError(
                            f"{where}:{number}: a line of more than"
                            f" {MAX_LINE_CHARACTERS >> 20} Mi characters; cut its text into several"
                            " rows."
                        )
                    yield line
        except UnicodeDecodeError:
            raise _undecodable(path, where, encoding) from None


def _undecodable(path: File, where: str, encoding: str = "utf-8-sig") -> ConfigError:
    """Returns the error for a file that is not text; it names the first bad line."""
    if encoding == "utf-16":
        return ConfigError(f"{where}: begins like UTF-16, but is not; save it as UTF-8.")
    with compressed.unpacked(path, where) as stream:
        # A line of the most characters; a longer one before it would have been refused.
        read = functools.partial(stream.readline, 4 * MAX_LINE_CHARACTERS)
        for number, line in enumerate(iter(read, b""), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return ConfigError(
                    f"{where}:{number}: not UTF-8 text (byte {line[error.start]:#04x}"
                    f"{_as_usual(line, error.start)}). In Excel, save it as 'CSV UTF-8'; or convert"
                    f" it: iconv -f {USUAL} -t utf-8 {path.name} > utf8-{path.name}"
                )
    return ConfigError(f"{where}: not UTF-8 text; save it as UTF-8.")


def _as_usual(line: bytes, at: int) -> str:
    """Returns the characters around a byte, decoded as USUAL, for the user to check."""
    try:
        text = line.decode(USUAL).strip()
    except UnicodeDecodeError:
        return ""
    near = text[max(0, at - MAX_SHOWN_CHARACTERS) : at + MAX_SHOWN_CHARACTERS]
    if not near.isprintable():
        return ""
    return f"; as {USUAL} it reads {near!r}"
