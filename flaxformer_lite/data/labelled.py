"""Labelled rows of a table as examples: columns, split, tokenizer, and what the task makes of each
row."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, DataConfig, plugin_name, to_config_dict
from flaxformer_lite.data import (
    cache,
    conversations,
    progress,
    table,
    tokenizer,
    tokenizer_training,
)
from flaxformer_lite.data.frame import Frame, Spans
from flaxformer_lite.data.split import SPLITS, split_of
from flaxformer_lite.data.table import Table
from flaxformer_lite.data.tokenizer import Tokenizer

Row = dict[str, Any]
BATCH = 1024  # texts tokenized at a time
NAMED = 12  # most columns that a message names


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """The examples of a table's rows; a row may have several (a long context in strides) or
    none."""

    tokenizer: Tokenizer  # gives the special ids
    frame: Frame  # the special tokens around texts
    length: int  # tokens of an example
    target_length: int  # of its decoder side, or 0
    table: Table  # as it was read
    rows: list[Row]  # its values by role
    features: list[Any] = field(
        default_factory=list
    )  # for each example what the task made of its row
    reference: np.ndarray | None = (
        None  # [examples, ...] what the starting weights predict, if asked for
    )
    row_of: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # [examples]; empty where rows share one
    skeleton: str = "encoder"  # the model's

    def __len__(self) -> int:
        return len(self.features)

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Tokenizes texts, without special tokens."""
        batches = (list(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH))
        return [spans for batch in batches for spans in self.tokenizer.encode_spans(batch)]

    def conversations(
        self, template: str, chats: Sequence[Any], known: Sequence[bool]
    ) -> list[Any]:
        """Tokenizes conversations by a chat template, with the tokens of answers marked
        (data/conversations.py)."""
        return conversations.encode(self.tokenizer, template, chats, known=known)


def open_labelled(
    cfg: DataConfig, objective: Any, skeleton: str, labels: tuple[str, ...] = (), *, types: int = 2
) -> tuple[Any, dict[str, LabelledRecords], list[tuple[str, str]]]:
    """Reads the rows that a config names.

    Args:
      cfg: the data section.
      objective: a `Task` of objectives/task.py.
      skeleton, types: the model's, and the token types that it tells apart; they decide the frame
        around texts.
      labels: names of the classes of the weights to start from.

    Returns:
      The task with its labels, the records of `train` and `eval`, and pairs that describe them in
      words.

    Raises:
      ConfigError: a file, a column, a label or the tokenizer cannot be used.
    """
    if not cfg.path:
        roles = ", ".join(column.role for column in objective.columns)
        raise ConfigError(
            f"data.path: {plugin_name(objective)} learns from a table with the columns {roles}; set"
            " it to a csv, tsv, jsonl or parquet file."
        )
    tables = _split(cfg, objective)
    rows = {name: by_role(objective, part, cfg.columns) for name, part in tables.items()}
    names = columns_of(objective, tables["train"], cfg.columns)
    classes = {
        role: tables["train"].names[name]
        for role, name in names.items()
        if name in tables["train"].names
    }
    with _row_errors(tables["train"]):
        objective = objective.fit(rows["train"], classes, labels)
    chosen = _tokenizer(cfg, tables["train"], rows["train"])
    records = {
        name: encode(objective, cfg, tables[name], rows[name], chosen, skeleton, types)
        for name in SPLITS
    }
    described = _described(objective, cfg, names, records)
    train = records["train"]
    joined = objective.join(train.features, train)
    if len(joined) < len(train):
        described.append(("packed", f"{len(train):,} training examples in {len(joined):,}"))
        records["train"] = replace(train, features=joined, row_of=np.zeros(0, np.int64))
    return objective, records, described


def open_rows(
    path: str,
    cfg: DataConfig,
    task: Any,
    chosen: Tokenizer,
    skeleton: str,
    types: int = 2,
    *,
    predicts: bool = False,
) -> LabelledRecords:
    """Reads new rows for a trained task.

    Args:
      path: the table.
      cfg: the data section of the run; `columns` and lengths are used.
      task: the trained one.
      chosen: the run's tokenizer.
      skeleton, types: the model's, as in `open_labelled`.
      predicts: whether the columns that the task predicts are to be ignored, as new data may hold
        anything there.

    Raises:
      ConfigError: as `open_labelled`.
    """
    read = table.read_table(path, f"--data={path}", "eval")
    rows = by_role(task, read, cfg.columns, predicts=predicts)
    return encode(task, cfg, read, rows, chosen, skeleton, types)


def encode(
    objective: Any,
    cfg: DataConfig,
    read: Table,
    rows: list[Row],
    chosen: Tokenizer,
    skeleton: str,
    types: int = 2,
) -> LabelledRecords:
    """Tokenizes rows into the task's examples."""
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    frame = chosen.frame(skeleton) if types > 1 else replace(chosen.frame(skeleton), second_type=0)
    reader = LabelledRecords(chosen, frame, length, target_length, read, rows, skeleton=skeleton)
    with _row_errors(read):
        made = objective.encode(rows, reader)
    row_of = np.repeat(np.arange(len(rows)), [len(examples) for examples in made])
    records = replace(
        reader, features=[example for examples in made for example in examples], row_of=row_of
    )
    if not len(records):
        raise ConfigError(
            f"{read.where}: no row of it fits into an example; raise data.length={cfg.length}."
        )
    return records


@contextlib.contextmanager
def _row_errors(read: Table) -> Iterator[None]:
    """Completes a task's errors about `row N`: with the table's name, and the row's number in the
    file before the split."""
    try:
        yield
    except ConfigError as error:
        told = str(error)
        numbers = read.numbers or range(1, len(read) + 1)
        if named := re.match(r"row (\d+)\b", told):
            told = f"{read.where}: row {numbers[int(named[1]) - 1]}{told[named.end() :]}"
        raise ConfigError(told) from None


def columns_of(
    objective: Any, read: Table, named: str, *, predicts: bool = False
) -> dict[str, str]:
    """Maps each role of a task to a column of the table: the one that the config names, or one of a
    usual name.

    Raises:
      ConfigError: there is no such column, or none with a usual name.
    """
    flag = "--columns" if read.where.startswith("--data=") else "--config.data.columns"
    asked = dict(pair.split("=", 1) for pair in named.split(",") if pair)
    roles = {column.role: column for column in objective.columns}
    has = f"has {', '.join(map(repr, read.columns[:NAMED]))}" + ", ..." * (
        len(read.columns) > NAMED
    )
    if unknown := sorted(set(asked) - set(roles)):
        raise ConfigError(
            f"data.columns={named!r}: {plugin_name(objective)} reads {', '.join(roles)}, not"
            f" {unknown[0]!r}."
        )
    found = {}
    for role, column in roles.items():
        if predicts and column.predicted:
            continue
        name = asked.get(role) or next(
            (n for n in (role, *column.names) if n in read.columns), None
        )
        if name in read.columns or str(name).partition(".")[0] in read.columns:
            found[role] = str(name)
        elif role in asked:
            raise ConfigError(
                f"data.columns={named!r}: {read.where} {has}, and no {asked[role]!r}."
            )
        elif not column.optional:
            raise ConfigError(
                f"{read.where}: {has}, where {plugin_name(objective)} needs a column for {role!r};"
                f" name it with {flag}={role}=NAME."
            )
    return found


def by_role(objective: Any, read: Table, named: str, *, predicts: bool = False) -> list[Row]:
    """Returns the values of each row by their roles; None for those that the table lacks."""
    found = columns_of(objective, read, named, predicts=predicts)
    roles = [column.role for column in objective.columns]
    rows = [
        {role: _value(row, found[role]) if role in found else None for role in roles}
        for row in read.rows
    ]
    for column in objective.columns:
        if column.predicted and not (predicts or column.optional):
            lacking = next((i for i, row in enumerate(rows) if row[column.role] is None), None)
            if lacking is not None:
                raise ConfigError(
                    f"{read.where}: row {lacking + 1} has no {column.role}; remove it, or"
                    " predict it."
                )
    return rows


def _value(row: Row, name: str) -> Any:
    """Returns the value of a column, or of `column.key` where it holds objects."""
    column, _, key = name.partition(".")
    inner = row.get(column)
    return inner.get(key) if name not in row and isinstance(inner, dict) else row.get(name)


def _split(cfg: DataConfig, objective: Any) -> dict[str, Table]:
    """Reads the training and the held-out rows: from two files, two splits of a folder, or by a
    hash of each row."""
    where = f"data.path={cfg.path!r}"
    read = table.read_table(cfg.path, where)
    if cfg.eval_path:
        return {
            "train": read,
            "eval": table.read_table(cfg.eval_path, f"data.eval_path={cfg.eval_path!r}", "eval"),
        }
    if any(name in table.splits_of(cfg.path) for name in table.SPLITS["eval"]):
        return {"train": read, "eval": table.read_table(cfg.path, where, "eval")}
    inputs = [column.role for column in objective.columns if not column.predicted]
    rows = by_role(objective, read, cfg.columns)
    documents = [(json.dumps([row[role] for role in inputs], default=str),) for row in rows]
    split = split_of(documents, cfg.eval_fraction, where, whole=True)
    sides = [split.side(document) for document in documents]
    return {name: read.take([i for i, side in enumerate(sides) if side == name]) for name in SPLITS}


def _tokenizer(cfg: DataConfig, read: Table, rows: list[Row]) -> Tokenizer:
    if cfg.tokenizer.path:
        return tokenizer.load(cfg.tokenizer.path)
    if cfg.tokenizer.name == "bytes":
        return tokenizer.Bytes()

    def write(folder: Any) -> None:
        with progress.working(f"training the {cfg.tokenizer.name} tokenizer"):
            tokenizer_training.train(cfg.tokenizer, _texts(rows)).save(folder)

    parts = "labelled", read.fingerprint, cfg.columns, *cfg.tokenizer.training
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return tokenizer.load(cache.folder(cfg.cache, f"tokenizer-{digest}", write))


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _described(
    objective: Any, cfg: DataConfig, names: dict[str, str], records: dict[str, LabelledRecords]
) -> list[tuple[str, str]]:
    train = records["train"]
    held = records["eval"]
    columns = ", ".join(
        role if role == name else f"{role} = {name}" for role, name in names.items()
    )
    described = [
        (
            "data",
            f"{cfg.path}: {len(train.rows):,} rows, {len(train):,} examples; columns {columns}",
        ),
        (
            "held out",
            (
                f"{cfg.eval_path or 'by a hash of each row'}: {len(held.rows):,} rows,"
                f" {len(held):,} examples"
            ),
        ),
    ]
    dropped = sum(len(part.rows) - len(np.unique(part.row_of)) for part in records.values())
    features = (feature for part in records.values() for feature in part.features)
    cut = sum(getattr(feature, "cut", getattr(feature[0], "cut", 0)) > 0 for feature in features)
    if cut or dropped:
        told = f"{cut:,} examples cut at data.length={cfg.length} tokens, {dropped:,} rows dropped"
        described.append(("notice", told))
    if labels := getattr(objective, "labels", ()):
        described.append(
            ("labels", ", ".join(labels[:NAMED]) + f", ... ({len(labels)})" * (len(labels) > NAMED))
        )
    described += [(f"example {i + 1}", objective.show(train, i)) for i in range(min(2, len(train)))]
    return described


def fingerprint(objective: Any, records: dict[str, LabelledRecords]) -> str:
    """Hashes everything that examples depend on."""
    train = records["train"]
    tables = [records[name].table.fingerprint for name in SPLITS]
    made_by = to_config_dict(objective).to_json(), str((train.length, train.target_length))
    parts = *tables, train.tokenizer.fingerprint, *made_by, *registry.code_of(type(objective))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
