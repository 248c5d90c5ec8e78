"""Finds the files that a path names: a file, a folder, a pattern or a list of them, or a dataset on
the Hub.

In a folder only files with a suffix of text, jsonl or tables are found, compressed (`.gz`, `.zst`)
or not; a single file is, whatever its suffix.
"""

import contextlib
import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import hub_dataset
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import STREAM, read_object
from flaxformer_lite.storage import compressed, hub, remote
from flaxformer_lite.storage.compressed import File
from flaxformer_lite.storage.fetch import on_disk
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
TABLES = (".csv", ".tsv", *hub_dataset.COLUMNAR)  # whose rows are documents of a text
# names of a split on the Hub and in a folder of `datasets`
SPLITS = {
    "train": ("train", "training"),
    "eval": ("validation", "dev", "eval", "test"),
}
# the suffixes that a folder is searched for, the latter for pairs
KNOWN = (
    "text, jsonl or a table",
    "jsonl or a table",
)


class Found(NamedTuple):
    """Files in a fixed order, and those of folders that are left out for their suffix."""

    files: tuple[File, ...]
    left_out: tuple[File, ...] = ()


def find_texts(path: str, where: str, split: str, *, pairs: bool) -> Found:
    """Finds the files of a text.

    Args:
      path: as data.path.
      where: the field and value to name in errors.
      split: which part of a dataset on the Hub whose address names none, `train` or `eval`.
      pairs: whether documents are pairs of texts, which only jsonl and tables have.

    Raises:
      ConfigError: there is no such file, or none with a suffix that is read.
      StorageError: the dataset or the object cannot be read.
    """
    with _naming_field(where):
        listed = [_texts_of(root, where, pairs=pairs) for root in _roots(path, where, split)]
    return Found(_distinct(read for read, _ in listed), _distinct(skipped for _, skipped in listed))


def find_table(path: str, where: str, split: str) -> Found:
    """Finds the files of a table, which are local: those at an address are downloaded.

    Args:
      path: as data.path; or a folder that `datasets` saved.
      where, split: as in `find_texts`; a folder of `datasets` may hold several splits, too.

    Raises:
      ConfigError: there is no such file.
      StorageError: as in `find_texts`.
    """
    files: list[File] = []
    with _naming_field(where):
        for root in _roots(path, where, split):
            files += _table_of(on_disk(str(root), _of_datasets), where, split)
    return Found(_distinct([files]))


def splits_of(path: str) -> tuple[str, ...]:
    """Returns the names of the splits in a folder of `datasets`; () for anything else."""
    is_list = "," in path or glob.has_magic(path)
    if hub.is_hub(path) or (is_list and not os.path.exists(expand_home(path))):
        return ()
    index = on_disk(path, _of_datasets) / "dataset_dict.json"
    if not index.is_file():
        return ()
    return tuple(map(str, read_object(index, {"splits": list}).get("splits") or ()))


def _roots(paths: str, where: str, split: str) -> list[str | File]:
    """Lists the files and folders that a path names.

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
            roots += hub_dataset.fetch_split(pattern, SPLITS[split])
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


def _texts_of(root: str | File, where: str, *, pairs: bool) -> Found:
    if isinstance(root, RemoteFile):
        return Found((root,))
    if isinstance(root, Path) and os.path.isfile(root):  # Path.is_file raises for long names
        return Found((root,))
    if isinstance(root, str):
        file = remote.find(root)
        if file:
            return Found((file,))
        hidden: list[File] = [*remote.find_below(root)]
        if not hidden:
            raise remote.missing(root)
    elif os.path.isdir(root):
        hidden = [*_list_below(root)]  # a list of paths is no list of File
    else:
        raise _missing(root, where)
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
    return Found(tuple(read), tuple(left_out))


def _missing(root: Path, where: str) -> ConfigError:
    if os.path.exists(root):
        return ConfigError(f"{where} {STREAM}")
    near = f"; nor is {root.parent}"
    if root.parent.is_dir():
        near = f" ({root.parent} is there)"
    return ConfigError(f"{where}: no such file or folder{near}.")


def _is_text(path: File) -> bool:
    kind = compressed.kind(path)
    # parts of a corpus are often numbered
    return not kind or kind in SUFFIXES or kind[1:].isdigit()


def _table_of(root: Path, where: str, split: str) -> list[Path]:
    """Lists the files of a table, or of a folder that `datasets` saved."""
    if os.path.isfile(root):
        return [root]
    if not os.path.isdir(root):
        raise _missing(root, where)
    named = splits_of(str(root))
    if named:
        wanted = next((name for name in SPLITS[split] if name in named), None)
        if wanted is None:
            raise ConfigError(
                f"{where}: has no split {' or '.join(SPLITS[split])}, only {', '.join(named)}; name"
                " one of its folders."
            )
        return _table_of(root / wanted, where, split)
    if not (root / "state.json").is_file():
        raise ConfigError(
            f"{where}: a folder that datasets' save_to_disk did not write; name its files, as in"
            f" {root / '*.csv'}."
        )
    files = []
    for entry in read_object(root / "state.json", {"_data_files": list}).get("_data_files") or []:
        file = root / str(entry.get("filename") if isinstance(entry, dict) else entry)
        if not file.is_file():
            raise ConfigError(f"{file}: cannot be read (no such file).")
        files.append(file)
    return files


def _of_datasets(names: list[str]) -> list[str]:
    """Selects the files to download: of a folder of `datasets`, and none of any other."""
    if {"state.json", "dataset_dict.json"} & set(names):
        return names
    return []


def _distinct(groups: Iterable[Iterable[File]]) -> tuple[File, ...]:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))


@contextlib.contextmanager
def _naming_field(where: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{where.partition('=')[0]}: {error}") from None
