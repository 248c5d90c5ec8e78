"""Tables of labelled rows: csv, tsv, json, jsonl, parquet, arrow, CoNLL, or a folder as Hugging
Face's `datasets` saves it."""

import csv
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, compressed
from flaxformer_lite.data.conll import read_conll
from flaxformer_lite.data.fetch import on_disk
from flaxformer_lite.files.read import brief, read_bytes, read_object

LARGEST = 1 << 31  # bytes of a file, which is read whole
SPLITS = {
    "train": ("train", "training"),
    "eval": ("validation", "dev", "eval", "test"),
}  # names in a folder of splits
MOST_CHARACTERS = 1 << 24  # of one field of csv
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named columns, in memory."""

    where: str  # the field and value that errors name
    columns: tuple[str, ...]  # their names
    rows: list[Row]  # a value per column; csv and tsv hold texts only
    fingerprint: str  # hash of the content
    names: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # of classes (ClassLabel), by column
    numbers: tuple[int, ...] = ()  # of each row in the file, from 1; empty where it has all of them

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: list[int]) -> "Table":
        """Returns a table of some of the rows."""
        digest = hashlib.sha256(f"{self.fingerprint} {numbers}".encode()).hexdigest()[:16]
        in_file = tuple(self.numbers[i] if self.numbers else i + 1 for i in numbers)
        return Table(
            self.where, self.columns, [self.rows[i] for i in numbers], digest, self.names, in_file
        )


def read_table(path: str, where: str, split: str = "train") -> Table:
    """Reads a table.

    Args:
      path: a file by its suffix (.csv, .tsv, .json, .jsonl, .conll, .conllu, .txt as CoNLL,
        .parquet, .arrow; .gz or .zst behind any), or a folder of `save_to_disk`.
      where: the field and value that errors name.
      split: which part of a folder that holds several to read, `train` or `eval`.

    Raises:
      ConfigError: there is no such file, it is empty, or it cannot be read; names the line where
        there is one.
    """
    file = on_disk(path, _of_datasets)
    if file.is_dir():
        return _read_folder(file, where, split)
    if not file.is_file():
        raise ConfigError(f"{where}: no such file.")
    kind = compressed.kind(file)
    if kind not in READERS:
        raise ConfigError(
            f"{where}: must be one of {', '.join(READERS)}, or a folder of datasets' save_to_disk."
        )
    content = read_bytes(file, limit=LARGEST)
    with compressed.reading(file, where), compressed.unpacked(file, where, content) as stream:
        plain = stream.read()
    rows = READERS[kind](plain, where)
    names = columnar.class_names(plain) if kind in columnar.KINDS else {}
    return _table(where, rows, hashlib.sha256(content).hexdigest()[:16], names)


def splits_of(path: str) -> tuple[str, ...]:
    """Returns the names of the splits that a folder of `datasets` holds; () for anything else."""
    listed = on_disk(path, _of_datasets) / "dataset_dict.json"
    return (
        tuple(map(str, read_object(listed, {"splits": list}).get("splits") or ()))
        if listed.is_file()
        else ()
    )


def _of_datasets(names: list[str]) -> list[str]:
    """Returns what to copy of a folder in a store, which may be large and something else."""
    return names if {"state.json", "dataset_dict.json"} & set(names) else []


def _table(where: str, rows: list[Row], digest: str, names: Mapping[str, tuple[str, ...]]) -> Table:
    if not rows:
        raise ConfigError(f"{where}: no rows in it.")
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(where, columns, rows, digest, {k: v for k, v in names.items() if k in columns})


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (at byte {error.start}); convert it.") from None


def _delimited(usual: str) -> Callable[[bytes, str], list[Row]]:
    return lambda content, where: list(
        delimited(io.StringIO(_text(content, where), newline=""), where, usual)
    )


def delimited(text: Iterable[str], where: str, usual: str) -> Iterator[Row]:
    """Yields the rows of csv or tsv.

    Args:
      text: its lines.
      where: the field and value that errors name.
      usual: the separator, unless the first line has a semicolon or tab and no such.

    Raises:
      ConfigError: a line has another number of values than the first, or cannot be read; names it.
    """
    text = iter(text)
    first = next(text, "")
    separator = next((s for s in (usual, ";", "\t") if s in first), usual)
    quoted = usual == "," or '"' in first  # else as GLUE's tsv, with lone quotes
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    csv.field_size_limit(MOST_CHARACTERS)
    lines = csv.reader(
        itertools.chain([first], text), delimiter=separator, quoting=quoting, strict=True
    )
    try:
        header = next(lines, [])
        if len(set(header)) != len(header):
            raise ConfigError(
                f"{where}: two columns of the same name ({', '.join(map(brief, header))})."
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


def _conll(universal: bool) -> Callable[[bytes, str], list[Row]]:
    return lambda content, where: read_conll(_text(content, where), where, universal=universal)


def _columns(kind: str) -> Callable[[bytes, str], list[Row]]:
    return lambda content, where: list(columnar.rows(content, where, kind))


def _jsonl(content: bytes, where: str) -> list[Row]:
    lines = enumerate(_text(content, where).split("\n"), start=1)
    return [parse_line(line, f"{where}:{number}") for number, line in lines if line.strip()]


def parse_line(line: str, where: str) -> Row:
    """Parses a line of jsonl; raises ConfigError, with `where` before it, if it is no object."""
    return _object(_json(line.rstrip(), where), where)


def _list(content: bytes, where: str) -> list[Row]:
    read = _json(_text(content, where), where)
    if isinstance(read, dict) and isinstance(read.get("data"), list):
        read = read["data"]
    if not isinstance(read, list):
        raise ConfigError(
            f"{where}: must hold a list of objects, or an object with such a list under data."
        )
    if read and isinstance(read[0], dict) and "paragraphs" in read[0]:
        return list(_squad(read, where))
    return [_object(row, f"{where}: entry {number}") for number, row in enumerate(read, start=1)]


def _squad(articles: list[Any], where: str) -> Iterator[Row]:
    """Yields a row per question of SQuAD's own nested file, as `datasets` has it."""
    try:
        for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
            for asked in paragraph["qas"]:
                answers = {
                    key: [answer[key] for answer in asked["answers"]]
                    for key in ("text", "answer_start")
                }
                row = {
                    "id": asked["id"],
                    "question": asked["question"],
                    "context": paragraph["context"],
                }
                yield row | {"answers": answers}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where}: looks like SQuAD's file, but lacks {error}.") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        told = f"{error.msg},{f' line {error.lineno}' * (error.lineno > 1)} column {error.colno}"
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits, or thousands of levels
        told = str(error).partition(";")[0]
    raise ConfigError(f"{where}: not JSON ({told}).")


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a JSON {type(value).__name__}; must be an object.")
    return value


def _read_folder(folder: Path, where: str, split: str) -> Table:
    if named := splits_of(str(folder)):
        wanted = next((name for name in SPLITS[split] if name in named), None)
        if wanted is None:
            raise ConfigError(
                f"{where}: has no split {' or '.join(SPLITS[split])}, only {', '.join(named)}; name"
                " one of its folders."
            )
        return _read_folder(folder / wanted, where, split)
    if not (folder / "state.json").is_file():
        raise ConfigError(
            f"{where}: a folder that datasets' save_to_disk did not write; name a file in it."
        )
    files = read_object(folder / "state.json", {"_data_files": list}).get("_data_files") or []
    files = [entry.get("filename") if isinstance(entry, dict) else entry for entry in files]
    contents = [read_bytes(folder / str(name), limit=LARGEST) for name in files]
    rows = [row for content in contents for row in columnar.rows(content, where, ".arrow")]
    names = columnar.class_names(contents[0]) if contents else {}
    if not names and (folder / "dataset_info.json").is_file():
        names = columnar.named(read_object(folder / "dataset_info.json").get("features"))
    return _table(where, rows, hashlib.sha256(b"".join(contents)).hexdigest()[:16], names)


READERS: dict[str, Callable[[bytes, str], list[Row]]] = {
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".json": _list,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".conll": _conll(False),
    ".conllu": _conll(True),
    ".txt": _conll(False),
    **{kind: _columns(kind) for kind in columnar.KINDS},
}
