"""Tables of labelled rows.

Reads csv, tsv, json, jsonl, parquet, arrow, CoNLL, and folders that Hugging Face's `datasets`
saved.
"""

import contextlib
import csv
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, digests, hub_dataset, stored, text_encoding
from flaxformer_lite.data.conll import read_conll
from flaxformer_lite.files.read import quote_value, read_object
from flaxformer_lite.objectives.rows import ClassNames
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import compressed, content_cache, hub
from flaxformer_lite.storage.fetch import on_disk
from flaxformer_lite.storage.stores import StorageError

FORMAT = "3"  # increase when the rows that are read from a file, or their files, change
SMALL = 1 << 20  # bytes of files whose rows stay in memory
LARGEST = 1 << 31  # most bytes of a .json file, which is read in one piece
NUMBERS = 1 << 16  # row numbers hashed at a time
# names in a folder of splits
SPLITS = {
    "train": ("train", "training"),
    "eval": ("validation", "dev", "eval", "test"),
}
SHEETS = (".xlsx", ".xls", ".ods", ".numbers")
MOST_CHARACTERS = 1 << 24  # of one field of csv
# (file, what to name in errors) -> rows
Reader = Callable[[Path, str], Iterable[stored.TableRow]]


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
        """Whether the rows are memory-mapped, as those of a large table are."""
        return isinstance(self.rows, stored.LazyRows)

    def number(self, row: int) -> int:
        """Returns the number of a row in the file, from 1."""
        if self.numbers is None:
            return row + 1
        return int(self.numbers[row])

    def with_names(self, names: ClassNames) -> "Table":
        """Returns the table with the names of its classes."""
        in_table = {column: names[column] for column in names if column in self.columns}
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
    if not file.is_file():
        raise ConfigError(f"{where}: no such file.")
    return _read_files([file], where, root)


def _read_files(files: Sequence[Path], where: str, root: str) -> Table:
    """Reads one table, which may be in several files of a kind."""
    kind = compressed.kind(files[0])
    if kind in SHEETS:
        raise ConfigError(
            f"{where}: a spreadsheet; save its sheet as 'CSV UTF-8' (File, Save As) and name that"
            " file."
        )
    if kind not in READERS:
        raise ConfigError(
            f"{where}: must be one of {', '.join(READERS)}, or a folder of datasets' save_to_disk."
        )
    digest, size = _content(files, where, root)

    def read() -> Iterator[stored.TableRow]:
        for file in files:
            at = where
            if len(files) > 1:
                at = f"{where}: {file.name}"
            yield from READERS[kind](file, at)

    table = _table(where, read, digest, size, kind, root)
    if kind not in columnar.KINDS:
        return table
    return table.with_names(columnar.class_names(_columnar_content(files[0], where), where))


def splits_of(path: str) -> tuple[str, ...]:
    """Returns the names of the splits in a folder of `datasets`; () for anything else."""
    index = on_disk(path, _of_datasets) / "dataset_dict.json"
    if not index.is_file():
        return ()
    return tuple(map(str, read_object(index, {"splits": list}).get("splits") or ()))


def _of_datasets(names: list[str]) -> list[str]:
    """Selects the files to download: those of a folder of `datasets`, and none of any other."""
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


def _delimited(usual: str) -> Reader:
    return lambda path, where: delimited(text_encoding.lines(path, where, ""), where, usual)


def delimited(text: Iterable[str], where: str, usual: str) -> Iterator[stored.TableRow]:
    """Yields the rows of csv or tsv.

    Args:
      text: its lines.
      where: the field and value to name in errors.
      usual: the separator, unless the first line lacks it and has a semicolon or tab.

    Raises:
      ConfigError: a line has a different number of values from the first, or cannot be read; names
        the line.
    """
    text = iter(text)
    first = next(text, "")
    separator = next((s for s in (usual, ";", "\t") if s in first), usual)
    quoted = usual == "," or '"' in first  # else as GLUE's tsv, with lone quotes
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # Python's own limit, 131,072 characters, is less than a long text.
    csv.field_size_limit(MOST_CHARACTERS)
    lines = csv.reader(
        itertools.chain([first], text), delimiter=separator, quoting=quoting, strict=True
    )
    try:
        header = next(lines, [])
        if len(set(header)) != len(header):
            raise ConfigError(
                f"{where}: two columns of the same name ({', '.join(map(quote_value, header))})."
            )
        for values in filter(None, lines):
            if len(values) != len(header):
                raise ConfigError(
                    f"{where}:{lines.line_num}: {len(values)} values, but the first line names"
                    f" {len(header)} columns."
                )
            yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{where}:{lines.line_num}: cannot be read ({error}).") from None


def _conll(universal: bool) -> Reader:
    return lambda path, where: read_conll(
        text_encoding.lines(path, where), where, universal=universal
    )


def _plain(path: Path, where: str) -> Iterable[stored.TableRow]:
    """Reads CoNLL, or Excel's "Unicode text", which separates values by tabs."""
    if text_encoding.is_utf16(path, where):
        return _delimited("\t")(path, where)
    return _conll(False)(path, where)


def _columns(kind: str) -> Reader:
    def read(path: Path, where: str) -> Iterator[stored.TableRow]:
        return columnar.rows(_columnar_content(path, where), where, kind)

    return read


def _columnar_content(path: Path, where: str) -> columnar.Content:
    if compressed.compression(path):
        return compressed.read_unpacked(path, where)
    return path


def _jsonl(path: Path, where: str) -> Iterator[stored.TableRow]:
    for number, line in enumerate(text_encoding.lines(path, where), start=1):
        if line.strip():
            yield parse_line(line, f"{where}:{number}")


def parse_line(line: str, where: str) -> stored.TableRow:
    """Parses a line of jsonl.

    Raises ConfigError, prefixed by `where`, unless the line is an object.
    """
    return _object(_json(line.rstrip(), where), where)


def _list(path: Path, where: str) -> list[stored.TableRow]:
    if not compressed.compression(path) and path.stat().st_size > LARGEST:
        raise ConfigError(
            f"{where}: {path.stat().st_size:,} bytes of JSON in one piece; write it as jsonl, an"
            " object per line."
        )
    if compressed.compression(path):
        compressed.read_unpacked(path, where)  # refuses one that is too long
    read = _json("".join(text_encoding.lines(path, where)), where)
    if isinstance(read, dict) and isinstance(read.get("data"), list):
        read = read["data"]
    if not isinstance(read, list):
        raise ConfigError(
            f"{where}: must hold a list of objects, or an object with such a list under data."
        )
    if read and isinstance(read[0], dict) and "paragraphs" in read[0]:
        return list(_squad(read, where))
    return [_object(row, f"{where}: entry {number}") for number, row in enumerate(read, start=1)]


def _squad(articles: list[stored.Json], where: str) -> Iterator[stored.TableRow]:
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


def _object(value: object, where: str) -> stored.TableRow:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a JSON {type(value).__name__}; must be an object.")
    return value


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


READERS: dict[str, Reader] = {
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".json": _list,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".conll": _conll(False),
    ".conllu": _conll(True),
    ".txt": _plain,
    **{kind: _columns(kind) for kind in columnar.KINDS},
}
