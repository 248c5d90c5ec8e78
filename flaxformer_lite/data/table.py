"""Tables of labelled rows: files (row_files.py), and folders that `datasets` saved."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, digests, hub_dataset, store
from flaxformer_lite.data.row_files import READERS, columnar_content, read_rows
from flaxformer_lite.data.rows import COLUMNS, Table, TableRow, TableRows, write_rows
from flaxformer_lite.data.store import Part, StoreWriter
from flaxformer_lite.files.read import STREAM, read_object
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, hub
from flaxformer_lite.storage.fetch import on_disk
from flaxformer_lite.storage.stores import StorageError

FORMAT = "6"  # increase when the rows that are read from a file, or their files, change
SMALL = 1 << 20  # bytes of files whose rows stay in memory
MAX_PART_BYTES = 1 << 28  # of neighboring files that one process reads at a time
# names in a folder of splits
SPLITS = {
    "train": ("train", "training"),
    "eval": ("validation", "dev", "eval", "test"),
}
SHEETS = (".xlsx", ".xls", ".ods", ".numbers")
KINDS = (*READERS, *columnar.KINDS)


def read_table(path: str, where: str, split: str = "train", *, root: str = "") -> Table:
    """Reads a table.

    Args:
      path: a file by its suffix (.csv, .tsv, .json, .jsonl, .conll, .conllu, .txt as CoNLL,
        .parquet, .arrow; .gz or .zst behind any), a folder of `save_to_disk`, or a dataset on the
        Hub (hub_dataset.py).
      where: the field and value to name in errors.
      split: which part of a folder that holds several to read, `train` or `eval`.
      root: data.cache, where the rows of a large table are kept; empty: they stay in memory.

    Raises:
      ConfigError: there is no such file, it is empty, or it cannot be read; names the line where
        there is one.
    """
    if hub.is_hub(path):
        try:
            return _read_files(hub_dataset.fetch_split(path, SPLITS[split]), where, root)
        except StorageError as error:
            raise StorageError(f"{where.partition('=')[0]}: {error}") from None
    file = on_disk(path, _of_datasets)
    if file.is_dir():
        return _read_folder(file, where, split, root)
    if not file.is_file() and file.exists():
        raise ConfigError(f"{where} {STREAM}")
    if not file.is_file():
        several = " A table is one file: join those that a list or a pattern names."
        raise ConfigError(f"{where}: no such file.{several if set(path) & set(',*?[') else ''}")
    return _read_files([file], where, root)


def _read_files(files: Sequence[Path], where: str, root: str) -> Table:
    """Reads one table, which may be in several files of a kind."""
    kind = compressed.kind(files[0])
    if kind in SHEETS:
        raise ConfigError(
            f"{where}: a spreadsheet; save its sheet as 'CSV UTF-8' (File, Save As) and name that"
            " file."
        )
    if kind not in KINDS:
        raise ConfigError(
            f"{where}: must be one of {', '.join(KINDS)}, or a folder of datasets' save_to_disk."
        )

    def read(file: Path) -> Iterable[TableRow]:
        return read_rows(file, f"{where}: {file.name}" if len(files) > 1 else where)

    table = _table(where, files, read, kind, root)
    if kind not in columnar.KINDS:
        return table
    with columnar_content(files[0], where) as content:
        return table.with_names(columnar.class_names(content, where))


def splits_of(path: str) -> tuple[str, ...]:
    """Returns the names of the splits in a folder of `datasets`; () for anything else."""
    index = on_disk(path, _of_datasets) / "dataset_dict.json"
    if not index.is_file():
        return ()
    return tuple(map(str, read_object(index, {"splits": list}).get("splits") or ()))


def _of_datasets(names: list[str]) -> list[str]:
    """Selects the files to download: of a folder of `datasets`, and none of any other."""
    if {"state.json", "dataset_dict.json"} & set(names):
        return names
    return []


def _content(files: Sequence[Path], where: str, root: str) -> tuple[str, int]:
    """Hashes files in order; returns the hash and their size in bytes."""

    def hashed() -> str:
        digest = hashlib.sha256()
        for file in files:
            digests.hash_content(digest, file, where)
        return digest.hexdigest()

    with contextlib.suppress(OSError):
        return digests.remembered(root, files, ["table"] * len(files), hashed)
    return hashed(), 0


def _table(
    where: str,
    files: Sequence[Path],
    read: Callable[[Path], Iterable[TableRow]],
    kind: str,
    root: str,
) -> Table:
    """Returns a table of the rows that `read` yields, through the cache if it is large."""
    digest, size = _content(files, where, root)

    def write(group: Sequence[Path], writer: StoreWriter) -> None:
        is_large = size > SMALL
        with progress.working(f"reading {where}") if is_large else contextlib.nullcontext():
            for file in group:
                write_rows(read(file), writer)

    parts = []
    for number, group in enumerate(_groups(files)):
        parts.append(Part(str(number), functools.partial(write, group)))
    if root and size > SMALL:
        name = f"store-{digests.digest_of(['rows', FORMAT, store.FORMAT, digest, kind])}"
        kept = store.open_store(root, name, COLUMNS, parts)
    else:
        kept = store.build_store(COLUMNS, parts)
    if not len(kept):
        raise ConfigError(f"{where}: no rows in it.")
    return Table(where, tuple(kept.counts), TableRows(kept), digest[:16], kind=kind)


def _groups(files: Sequence[Path]) -> list[list[Path]]:
    """Divides files into groups of neighbors that have MAX_PART_BYTES together."""
    groups: list[list[Path]] = [[]]
    size = 0
    for file in files:
        if size > MAX_PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.stat().st_size
    return groups


def _read_folder(folder: Path, where: str, split: str, root: str) -> Table:
    named = splits_of(str(folder))
    if named:
        wanted = next((name for name in SPLITS[split] if name in named), None)
        if wanted is None:
            raise ConfigError(
                f"{where}: has no split {' or '.join(SPLITS[split])}, only {', '.join(named)}; name"
                " one of its folders."
            )
        return _read_folder(folder / wanted, where, split, root)
    if not (folder / "state.json").is_file():
        raise ConfigError(
            f"{where}: a folder that datasets' save_to_disk did not write; name a file in it."
        )
    files = read_object(folder / "state.json", {"_data_files": list}).get("_data_files") or []
    paths = []
    for entry in files:
        name = entry.get("filename") if isinstance(entry, dict) else entry
        paths.append(folder / str(name))

    def read(path: Path) -> Iterable[TableRow]:
        return columnar.rows(path, where, ".arrow")

    table = _table(where, paths, read, "datasets", root)
    names = columnar.class_names(paths[0], where)
    if not names and (folder / "dataset_info.json").is_file():
        names = columnar.named(read_object(folder / "dataset_info.json").get("features"))
    return table.with_names(names)
