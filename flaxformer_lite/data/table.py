"""Tables of labelled rows: files (row_files.py), and folders that `datasets` saved."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, digests, hub_dataset, stored
from flaxformer_lite.data.row_files import READERS, columnar_content, read_rows
from flaxformer_lite.files.read import STREAM, read_object
from flaxformer_lite.objectives.rows import ClassNames
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, content_cache, hub
from flaxformer_lite.storage.fetch import on_disk
from flaxformer_lite.storage.stores import StorageError

FORMAT = "5"  # increase when the rows that are read from a file, or their files, change
SMALL = 1 << 20  # bytes of files whose rows stay in memory
NUMBERS = 1 << 16  # row numbers hashed at a time
# names in a folder of splits
SPLITS = {
    "train": ("train", "training"),
    "eval": ("validation", "dev", "eval", "test"),
}
SHEETS = (".xlsx", ".xls", ".ods", ".numbers")
KINDS = (*READERS, *columnar.KINDS)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named columns, in memory or mapped from files."""

    where: str  # the field and value to name in errors
    columns: tuple[str, ...]  # their names
    rows: Sequence[stored.TableRow]  # a value per column; csv and tsv hold texts only
    fingerprint: str  # hash of the content
    # the names of the classes (ClassLabel) of each column
    names: ClassNames = field(default_factory=dict)
    numbers: np.ndarray | None = None  # [rows] in the file, from 1; None: it has all of them
    kind: str = ""  # suffix of the file, by which its content was read

    @property
    def identity(self) -> list[str]:
        """Fingerprint and kind of the file: the same bytes parse differently as .csv and .tsv."""
        return [self.fingerprint, self.kind]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_stored(self) -> bool:
        """Whether the rows are memory-mapped, as a large table's are."""
        return isinstance(self.rows, stored.LazyRows)

    def number(self, row: int) -> int:
        """Returns the number of a row in the file, from 1."""
        if self.numbers is None:
            return row + 1
        return int(self.numbers[row])

    def with_names(self, names: ClassNames) -> "Table":
        """Returns the table with the names of its classes."""
        in_table = {}
        for column in names:
            if column in self.columns or column.partition(".")[0] in self.columns:
                in_table[column] = names[column]
        return replace(self, names=in_table)

    def take(self, numbers: np.ndarray) -> "Table":
        """Returns a table of the rows with these indices."""
        digest = hashlib.sha256(f"{self.fingerprint} [".encode())
        for begin in range(0, len(numbers), NUMBERS):
            # The text of one list of all numbers, so that fingerprints do not depend on NUMBERS.
            if begin:
                digest.update(b", ")
            digest.update(", ".join(map(str, numbers[begin : begin + NUMBERS].tolist())).encode())
        digest.update(b"]")
        rows: Sequence[stored.TableRow]
        if isinstance(self.rows, stored.LazyRows):
            rows = stored.TakenRows(self.rows, numbers)
        else:
            rows = [self.rows[number] for number in numbers.tolist()]
        in_file = numbers + 1 if self.numbers is None else self.numbers[numbers]
        return replace(
            self,
            rows=rows,
            fingerprint=digest.hexdigest()[:16],
            numbers=in_file,
        )


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
    digest, size = _content(files, where, root)

    def read() -> Iterator[stored.TableRow]:
        for file in files:
            at = where
            if len(files) > 1:
                at = f"{where}: {file.name}"
            yield from read_rows(file, at)

    table = _table(where, read, digest, size, kind, root)
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
    read: Callable[[], Iterable[stored.TableRow]],
    digest: str,
    size: int,
    kind: str,
    root: str,
) -> Table:
    """Returns a table of the rows that `read` yields, through the cache if it is large."""
    rows: Sequence[stored.TableRow]
    columns: tuple[str, ...] = ()
    if root and size > SMALL:
        with contextlib.suppress(stored.Unstorable):
            folder = _cached_rows(where, read, [FORMAT, digest, kind], root)
            described = read_object(folder / "table.json", {"columns": list})
            columns = tuple(described["columns"])
            rows = stored.StoredRows(folder)
    if not columns:
        rows = list(read())
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
    if not len(rows):
        raise ConfigError(f"{where}: no rows in it.")
    return Table(where, columns, rows, digest[:16], kind=kind)


def _cached_rows(
    where: str, read: Callable[[], Iterable[stored.TableRow]], key: list[str], root: str
) -> Path:
    """Returns the cache folder of a table's rows."""

    def write(folder: Path) -> None:
        with progress.working(f"reading {where}"):
            columns = stored.write_rows(folder, read())
        (folder / "table.json").write_text(json.dumps({"columns": columns}))

    return content_cache.folder(root, f"table-{digests.digest_of(key)}", write)


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
    digest, size = _content(paths, where, root)

    def read() -> Iterator[stored.TableRow]:
        for path in paths:
            yield from columnar.rows(path, where, ".arrow")

    table = _table(where, read, digest, size, "datasets", root)
    names = columnar.class_names(paths[0], where)
    if not names and (folder / "dataset_info.json").is_file():
        names = columnar.named(read_object(folder / "dataset_info.json").get("features"))
    return table.with_names(names)
