"""Reads the documents of a file: lines of jsonl, rows of a table, or plain text.

Each line of a `.jsonl` file and each row of a table (`.csv`, `.tsv`, `.parquet`, `.arrow`) is a
document, of at most LONGEST bytes. Any other file is one document; if it has more than LONGEST / 2
bytes, it is cut at the ends of lines. All files may be compressed (`.gz`, `.zst`).
"""

import reprlib
from collections.abc import Iterator

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, row_files, text_encoding
from flaxformer_lite.storage import compressed
from flaxformer_lite.storage.compressed import File

JSONL = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *columnar.KINDS)
LONGEST = 1 << 24  # most bytes of a document of plain text
Document = tuple[str, ...]


def read(path: File, where: str, fields: tuple[str, ...]) -> Iterator[tuple[int, Document]]:
    """Yields the documents of a file, each with its position.

    The position is the row in a table, or else the line where the document begins; both count from
    1.

    Args:
      path: the file.
      where: the field and value of the config, for errors.
      fields: keys of a jsonl line, or columns of a table; a document has one text for each.

    Raises:
      ConfigError: the file is not text, or a line or row is malformed; it names file and line.
    """
    if compressed.kind(path) in TABLES:
        return enumerate(_rows(path, where, fields), start=1)
    if is_jsonl(path):
        return _records(path, where, fields)
    if len(fields) > 1:
        raise ConfigError(
            f"{where}: {path.name} must be jsonl or a table, with"
            f" {' and '.join(map(repr, fields))}."
        )
    return _parts(path, where)


def _records(path: File, where: str, fields: tuple[str, ...]) -> Iterator[tuple[int, Document]]:
    """Yields the documents of jsonl, each with the number of its line."""
    where = f"{where}: {path.name}"
    for number, line in enumerate(text_encoding.lines(path, where), start=1):
        if line.strip():
            at = f"{where}:{number}"
            yield number, _chosen(row_files.parse_line(line, at), at, fields)


def is_jsonl(path: File) -> bool:
    """Returns whether a file holds one JSON object per line, by its name."""
    return compressed.kind(path) in JSONL


def _parts(path: File, where: str) -> Iterator[tuple[int, Document]]:
    """Yields the parts of a plain text, each with its first line, with one at a time in memory."""
    offset = 0
    line = 1
    with compressed.reading(path, where), compressed.unpacked(path, where) as file:
        while data := _part(file):
            try:
                text = data.decode("utf-8" if offset else "utf-8-sig")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{where}: {path.name} is not UTF-8 text (byte {data[error.start]:#04x} at"
                    f" {offset + error.start}); convert it, or leave it out."
                ) from None
            if "\0" in text:
                at = offset + data.index(0)
                raise ConfigError(
                    f"{where}: {path.name} is binary (a NUL byte at {at}), not text; leave it out."
                )
            yield line, (text,)
            line += text.count("\n")
            offset += len(data)


def _part(file: compressed.Stream) -> bytes:
    """Reads LONGEST / 2 bytes and the rest of the line; cuts a longer line between characters."""
    data = file.read(LONGEST // 2) + file.readline(LONGEST // 2 - 3)
    for _ in range(3):
        if b"\x80" <= file.peek(1)[:1] < b"\xc0":  # in the middle of a character
            data += file.read(1)
    return data


def _rows(path: File, where: str, fields: tuple[str, ...]) -> Iterator[Document]:
    """Yields the texts of each row of a table; a missing value is an empty text."""
    at = f"{where}: {path.name}"
    for number, row in enumerate(row_files.read_rows(path, at, fields), start=1):
        filled = {name: "" if value is None else value for name, value in row.items()}
        yield _chosen(filled, f"{at}, row {number}", fields)


def _chosen(record: dict, at: str, fields: tuple[str, ...]) -> Document:
    """Returns the texts of a record for the given fields."""
    for field in fields:
        if not isinstance(record.get(field), str):
            reason = _keys(record)
            if field in record:
                reason = "not a string"
            way_out = f"this objective reads {' and '.join(map(repr, fields))}"
            texts = [key for key in record if _is_text(record, key)]
            if len(fields) == 1 and texts:
                longest = max(texts, key=lambda key: len(record[key]))
                way_out = f"set the field, --config.data.text_field={longest}"
            raise ConfigError(f"{at}: no text under {field!r} ({reason}); {way_out}.")
        if any("\ud800" <= c <= "\udfff" for c in set(record[field])):
            raise ConfigError(
                f"{at}: the text under {field!r} is not valid Unicode (a lone surrogate)."
            )
    return tuple(record[field] for field in fields)


def _is_text(record: dict, key: str) -> bool:
    """Returns whether there is a text under a key that can be spelled on a command line."""
    return isinstance(record[key], str) and reprlib.repr(key)[1:-1] == key


def _keys(record: dict) -> str:
    return f"keys: {reprlib.repr(list(record))[1:-1] or 'none'}"
