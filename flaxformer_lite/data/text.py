"""Text sources: a built-in corpus, or a user's file or folder, as documents with a fingerprint.

Each line of a `.jsonl` file is a document of at most LONGEST bytes; any other file is one document, or several if it is
longer than half of that, cut at the ends of lines. Both may be compressed (`.gz`). In a folder only files with a text
suffix are read; a single file is read whatever its suffix.
"""

import collections
import contextlib
import functools
import gzip
import hashlib
import json
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import cache, corpora, progress

JSONL = (".jsonl", ".ndjson")
PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex", ".adoc", ".srt", ".vtt")
CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".rs", ".go", ".java", ".kt", ".scala", ".swift", ".js",
    ".jsx", ".mjs", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".hs", ".ml", ".clj", ".ex", ".erl", ".lisp",
    ".el", ".sh", ".bash", ".sql", ".cs", ".fs", ".vb", ".f", ".f90", ".m", ".zig", ".nim", ".dart", ".cmake", ".proto",
)  # fmt: skip
LONGEST = 1 << 24  # bytes of a line of jsonl, and of a document of plain text
NAMED = 3  # most files that a notice names
CORPUS_FORMAT = "1"  # increase when an extraction in corpora.py changes
Document = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Documents that can be read repeatedly."""

    where: str  # the field and value that errors name
    files: tuple[Path, ...]  # in a fixed order
    fields: tuple[str, ...]  # keys of a jsonl line; a document has one text for each
    fingerprint: str  # sha256 of the content of the files
    size: int  # bytes on disk
    left_out: tuple[Path, ...] = ()  # files of the folder without a text suffix

    def kinds(self) -> str:
        """Describes the files, as in `3 files (2 .txt, 1 .md), 1.2 MB`."""
        count = collections.Counter(_kind(path) or "without suffix" for path in self.files)
        kinds = ", ".join(f"{n} {kind}" for kind, n in count.most_common())
        files = f"{len(self.files)} files ({kinds})" if len(self.files) > 1 else self.files[0].name
        return f"{files}, {f'{self.size / 1e6:.1f} MB' if self.size >= 1e6 else f'{self.size / 1e3:.1f} kB'}"

    def unread(self) -> str:
        """Describes the files of the folder that were not read; "" if there are none."""
        if not self.left_out:
            return ""
        names = ", ".join(path.name for path in self.left_out[:NAMED])
        more = f" and {len(self.left_out) - NAMED} more" if len(self.left_out) > NAMED else ""
        return (
            f"{names}{more}: not read, as the suffix{'es are' if len(self.left_out) > 1 else ' is'} not that of"
            f" {'jsonl' if len(self.fields) > 1 else 'text or jsonl'}"
        )

    def documents(self) -> Iterator[Document]:
        """Yields the texts of all documents that are not blank.

        Raises:
          ConfigError: a file is not text, or a line of jsonl is not as it should be; names file and line.
        """
        for path in self.files:
            texts = _texts(path, self.where)
            if is_jsonl(path):
                lines = ((number, line) for number, line in enumerate(texts, start=1) if line.strip())
                found = (_parse(line, f"{self.where}: {path.name}:{number}", self.fields) for number, line in lines)
            elif len(self.fields) > 1:
                raise ConfigError(
                    f"{self.where}: {path.name} is not jsonl; this objective needs lines of jsonl with"
                    f" {' and '.join(map(repr, self.fields))}."
                )
            else:
                found = ((text,) for text in texts)
            yield from (document for document in found if all(text and not text.isspace() for text in document))


def open_source(cfg: DataConfig, fields: tuple[str, ...]) -> Source:
    """Opens the text that a config names.

    Args:
      cfg: the data section; path, corpus and cache are used.
      fields: texts that the objective reads from a document: ("text",), or ("source", "target").

    Raises:
      ConfigError: the path does not exist or is empty, or the built-in corpus lacks these fields.
    """
    if cfg.path:
        where = f"data.path={cfg.path!r}"
        files, left_out = _files(Path(cfg.path).expanduser(), where, pairs=len(fields) > 1)
    else:
        where = f"data.corpus={cfg.corpus!r}"
        files, left_out = (_built_in(cfg, fields, where),), ()
    digest, size = hashlib.sha256(), 0
    for path in files:
        digest.update(f"{is_jsonl(path)} {path.stat().st_size}\n".encode())
        with _reading(path, where), path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    if not size:
        raise ConfigError(f"{where}: empty; set it to a file or folder with text.")
    return Source(where, files, fields, digest.hexdigest()[:16], size, left_out)


def is_jsonl(path: Path) -> bool:
    """Returns whether a file holds one JSON object per line, by its name."""
    return _kind(path) in JSONL


def _kind(path: Path) -> str:
    """Returns a file's suffix, not counting that of compression."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _is_text(path: Path) -> bool:
    kind = _kind(path)
    return not kind or kind in PROSE + CODE or kind[1:].isdigit()  # parts of a corpus are often numbered


def _built_in(cfg: DataConfig, fields: tuple[str, ...], where: str) -> Path:
    if (cfg.corpus == "code_docstrings") != (fields == ("source", "target")):
        fitting = "code_docstrings" if len(fields) > 1 else "stdlib_code or docstrings"
        raise ConfigError(
            f"{where}: this objective reads {' and '.join(fields)}; use data.corpus={fitting}, or"
            f" set data.path to your own jsonl."
        )
    version = hashlib.sha256(f"{CORPUS_FORMAT} {corpora.version(cfg.corpus)}".encode()).hexdigest()[:16]
    name = f"text-{cfg.corpus}-{version}"

    def write(folder: Path) -> None:
        with progress.working(f"extracting {cfg.corpus} from the installed packages"):
            corpora.write(cfg.corpus, folder / "documents.jsonl")

    return cache.folder(cfg.cache, name, write) / "documents.jsonl"


def _files(root: Path, where: str, *, pairs: bool) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Lists the files to read, in order, and those to leave out."""
    if root.is_file():
        return (root,), ()
    if not root.is_dir():
        near = f" ({root.parent} is there)" if root.parent.is_dir() else f"; nor is {root.parent}"
        raise ConfigError(f"{where}: no such file or folder{near}.")
    hidden = [p for p in sorted(root.rglob("*")) if p.is_file()]
    files = tuple(p for p in hidden if not any(part.startswith(".") for part in p.relative_to(root).parts))
    if not files:
        raise ConfigError(f"{where}: a folder without files; put text, jsonl or gz files in it.")
    read = tuple(p for p in files if is_jsonl(p) or (not pairs and _is_text(p)))
    if not read:
        kinds = ", ".join(sorted({_kind(p) or p.name for p in files}))
        raise ConfigError(
            f"{where}: no file in it has a suffix of {'jsonl' if pairs else 'text or jsonl'} ({kinds}); a single"
            f" file, data.path=FILE, is read whatever its suffix."
        )
    return read, tuple(p for p in files if p not in set(read))


@contextlib.contextmanager
def _reading(path: Path, where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read ({error}).") from error


def _texts(path: Path, where: str) -> Iterator[str]:
    """Yields the lines of jsonl, or a plain text in parts, and holds one of them in memory."""
    offset, number, opener = 0, 0, gzip.open if path.name.lower().endswith(".gz") else open
    with _reading(path, where), opener(path, "rb") as file:
        read = functools.partial(file.readline, LONGEST + 1) if is_jsonl(path) else functools.partial(_part, file)
        while data := read():
            number += 1
            if len(data) > LONGEST:
                raise ConfigError(
                    f"{where}: {path.name}:{number}: a line of more than {LONGEST >> 20} MiB; cut its text into several lines."
                )
            try:
                text = data.decode("utf-8" if offset else "utf-8-sig")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{where}: {path.name} is not UTF-8 text (byte {data[error.start]:#04x} at {offset + error.start});"
                    f" convert it, or leave it out."
                ) from None
            if "\0" in text:
                at = offset + data.index(0)
                raise ConfigError(f"{where}: {path.name} is binary (a NUL byte at {at}), not text; leave it out.")
            yield text
            offset += len(data)


def _part(file: Any) -> bytes:
    """Reads half of LONGEST and the rest of its last line, or of its last character if that line is too long."""
    data = file.read(LONGEST // 2) + file.readline(LONGEST // 2 - 3)
    for _ in range(3):
        data += file.read(1) if b"\x80" <= file.peek(1)[:1] < b"\xc0" else b""
    return data


def _parse(line: str, at: str, fields: tuple[str, ...]) -> Document:
    """Reads the texts of a line of jsonl."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of a thousand levels
        told = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ConfigError(f"{at}: not JSON ({told.partition(';')[0]}); each line must be an object.") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{at}: a JSON {type(record).__name__}; each line must be an object.")
    for field in fields:
        if not isinstance(record.get(field), str):
            found = "not a string" if field in record else _keys(record)
            way = f"this objective reads {' and '.join(map(repr, fields))}"
            texts = (key for key, value in record.items() if isinstance(value, str) and reprlib.repr(key)[1:-1] == key)
            if len(fields) == 1 and (text := next(texts, "")):
                way = f"set the field, --config.data.text_field={text}"
            raise ConfigError(f"{at}: no text under {field!r} ({found}); {way}.")
        if any("\ud800" <= c <= "\udfff" for c in set(record[field])):
            raise ConfigError(f"{at}: the text under {field!r} is not valid Unicode (a lone surrogate).")
    return tuple(record[field] for field in fields)


def _keys(record: dict) -> str:
    return f"keys: {reprlib.repr(list(record))[1:-1] or 'none'}"
