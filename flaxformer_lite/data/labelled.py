"""Turns the rows of a table into examples: splits and encodes them, and fits the task to them."""

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data import table
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.encoded_rows import (
    LabelledRecords,
    encode_rows,
    is_cacheable,
    made_by,
    row_errors,
)
from flaxformer_lite.data.open_tokenizer import make_tokenizer
from flaxformer_lite.data.rows import Table, TableRows, by_role, columns_of
from flaxformer_lite.data.scan import Scan, count_shared, scan_table
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runtime import garbage, progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text import tokenizer_training
from flaxformer_lite.text.tokenizer import Tokenizer

DROP = "leave such rows out with --config.data.drop_incomplete=True"
NAMED = 12  # most labels that the start of a run prints
EXPLAINED = 1 << 12  # rows that say why nothing is learned from some
MOST_DROPPED = 5  # dropped rows that it names
SAMPLED = 1 << 12  # number of rows by which the characters of a table are estimated


@garbage.skip_old_objects()
def open_labelled(
    cfg: DataConfig, objective: Task, skeleton: str, labels: tuple[str, ...] = (), *, types: int = 2
) -> tuple[Task, dict[str, LabelledRecords], list[tuple[str, str]]]:
    """Reads the rows that a config names.

    Args:
      cfg: the data section.
      objective: a `Task` of objectives/tables/task.py.
      skeleton: the model's skeleton, such as "encoder".
      types: the number of token types that the model distinguishes; with the skeleton, it decides
        which special tokens frame the texts.
      labels: the class names of the weights that training starts from.

    Returns:
      The task with its labels, the records of `train` and `eval`, and (title, text) pairs that
      describe them in the banner of a run.

    Raises:
      ConfigError: a file, a column, a label or the tokenizer cannot be used.
    """
    if not cfg.path:
        roles = ", ".join(column.role for column in objective.columns)
        raise ConfigError(
            f"data.path: {plugin_name(objective)} learns from a table with the columns {roles}; set"
            " it to a csv, tsv, jsonl or parquet file."
        )
    tables, remarks = _split(cfg, objective)
    names = columns_of(objective, tables["train"], cfg.columns)
    rows = {name: by_role(objective, part, cfg.columns) for name, part in tables.items()}
    objective = _fitted(cfg, objective, tables["train"], rows["train"], names, labels)
    chosen = make_tokenizer(
        cfg.tokenizer, lambda: _train_tokenizer(cfg, tables["train"], rows["train"])
    )
    records = {}
    for name in SPLITS:
        with _all_doubts(objective, rows):
            records[name] = encode_rows(
                objective, cfg, tables[name], rows[name], chosen, skeleton, types, root=cfg.cache
            )
    remarks += objective.remarks(records)
    remarks += _untaught(objective, records.values())
    described = _described(objective, cfg, names, records)
    described += [("warning", remark) for remark in remarks]
    train = records["train"]
    if objective.packed:
        joined = train.join_neighbors()
        if len(joined) < len(train):
            described.append(("packed", f"{len(train):,} training examples in {len(joined):,}"))
            records["train"] = joined
    return objective, records, described


@contextlib.contextmanager
def _all_doubts(objective: Task, rows: Mapping[str, TableRows]) -> Iterator[None]:
    """Adds to an error about a row what else is doubtful in all of them."""
    try:
        yield
    except ConfigError as error:
        doubts = objective.doubts(itertools.chain.from_iterable(rows.values()))
        raise ConfigError(" ".join([str(error), *doubts])) from None


def _fitted(
    cfg: DataConfig,
    objective: Task,
    read: Table,
    rows: TableRows,
    names: dict[str, str],
    labels: tuple[str, ...],
) -> Task:
    """Returns the task fitted to the training rows, for example with its labels."""
    classes = {role: read.names[name] for role, name in names.items() if name in read.names}

    def fit() -> Task:
        with row_errors(read):
            return objective.fit(rows, classes, labels)

    if not read.is_stored or not is_cacheable(objective):
        return fit()

    def write(folder: Path) -> None:
        with progress.working("reading the labels"):
            fitted = fit()
        (folder / "task.json").write_text(to_config_dict(fitted).to_json())

    parts = [*read.identity, names, classes, labels, *made_by(objective)]
    folder = content_cache.folder(cfg.cache, f"task-{digest_of(parts)}", write)
    values = json.loads((folder / "task.json").read_text())
    return from_config_dict(type(objective), values, where="objective")


@garbage.skip_old_objects()
def open_rows(
    path: str,
    cfg: DataConfig,
    task: Task,
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
      task: the trained task.
      chosen: the run's tokenizer.
      skeleton, types: as in `open_labelled`.
      predicts: whether to ignore the columns that the task predicts. New data may have anything in
        them.

    Raises:
      ConfigError: as `open_labelled`.
    """

    def opened(root: str) -> LabelledRecords:
        read = table.read_table(path, f"--data={path}", "eval", root=root)
        if not predicts:
            read = _usable_rows(replace(cfg, cache=root or cfg.cache), task, read, "predict it")[0]
        rows = by_role(task, read, cfg.columns, predicts=predicts)
        with _all_doubts(task, {"eval": rows}):
            records = encode_rows(task, cfg, read, rows, chosen, skeleton, types, root=root)
        if not predicts:
            _untaught(task, [records])
        return records

    try:
        # In the cache of this machine, as other hosts have no use for the rows.
        return opened(str(content_cache.local(cfg.cache)))
    except content_cache.NotWritable:  # for example, if the workdir comes from another machine
        return opened("")


def _split(cfg: DataConfig, objective: Task) -> tuple[dict[str, Table], list[str]]:
    """Reads the training and held-out rows, with remarks about them.

    They are two files, two splits of a folder, or a division of one table by the hash of each row.
    """
    where = f"data.path={cfg.path!r}"
    read = table.read_table(cfg.path, where, root=cfg.cache)
    held_out = None
    if cfg.eval_path:
        eval_where = f"data.eval_path={cfg.eval_path!r}"
        held_out = table.read_table(cfg.eval_path, eval_where, "eval", root=cfg.cache)
    elif any(name in table.splits_of(cfg.path) for name in table.SPLITS["eval"]):
        held_out = table.read_table(cfg.path, where, "eval", root=cfg.cache)
    if held_out is None:
        result = _scanned(cfg, objective, read, cfg.eval_fraction)
        tables = {name: read.take(rows) for name, rows in result.split().items()}
        return tables, result.remarks(read, drops=cfg.drop_incomplete)
    train, train_scan, remarks = _usable_rows(cfg, objective, read)
    held, held_scan, more = _usable_rows(cfg, objective, held_out)
    same = count_shared(train_scan, held_scan)
    if same:
        remarks.append(
            f"{same:,} of {len(held):,} held-out rows ({same / len(held):.0%}) are also training"
            " rows; their scores say nothing about new rows"
        )
    return {"train": train, "eval": held}, remarks + more


def _usable_rows(
    cfg: DataConfig, objective: Task, read: Table, way: str = DROP
) -> tuple[Table, Scan, list[str]]:
    """Returns a table without its incomplete rows if they are dropped, its scan, and remarks."""
    result = _scanned(cfg, objective, read, 0, way)
    remarks = result.remarks(read, drops=cfg.drop_incomplete)
    complete = result.complete
    if not complete.all():
        read = read.take(np.flatnonzero(complete))
        result = replace(result, hashes=result.hashes[complete], complete=complete[complete])
    return read, result, remarks


def _scanned(
    cfg: DataConfig, objective: Task, read: Table, fraction: float, way: str = DROP
) -> Scan:
    """Scans a table.

    Raises:
      ConfigError: rows lack a label or text, and data.drop_incomplete is off.
    """
    rows = by_role(objective, read, cfg.columns)
    names = columns_of(objective, read, cfg.columns)
    drops = cfg.drop_incomplete
    cached = None
    if is_cacheable(objective):
        cached = cfg.cache, digest_of([names, *made_by(objective)])
    result = scan_table(read, rows, objective, fraction, drops=drops, cached=cached)
    if not drops:
        result.check(read, rows, objective, way)
    if not result.complete.any():
        raise ConfigError(f"{read.where}: no row has all of {', '.join(names)}.")
    return result


def _train_tokenizer(cfg: DataConfig, read: Table, rows: TableRows) -> Path:
    """Returns the folder of a tokenizer that is trained on the rows, unless it is cached."""

    def write(folder: Path) -> None:
        name = cfg.tokenizer.name
        every = max(1, math.ceil(_characters(rows) / tokenizer_training.MOST[name]))
        sample = rows.take(np.arange(0, len(rows), every))
        with progress.working(f"training the {name} tokenizer"):
            tokenizer_training.train(cfg.tokenizer, _texts(sample)).save(folder)

    digest = digest_of(["labelled", read.fingerprint, cfg.columns, *cfg.tokenizer.training])
    return content_cache.folder(cfg.cache, f"tokenizer-{digest}", write)


def _characters(rows: TableRows) -> float:
    """Estimates the number of characters in the texts of all rows."""
    sample = rows.take(np.arange(0, len(rows), max(1, len(rows) // SAMPLED)))
    return sum(map(len, _texts(sample))) / len(sample) * len(rows)


def _texts(value: object) -> Iterator[str]:
    """Yields all texts within a value, without lone surrogates, which the task refuses by row."""
    if isinstance(value, str):
        yield value.encode(errors="ignore").decode()
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, TableRows)):
        for inner in value:
            yield from _texts(inner)


def _untaught(objective: Task, parts: Collection[LabelledRecords]) -> list[str]:
    """Describes examples from which nothing is learned; rejects a table that has no others."""
    remarks = []
    for part in parts:
        untaught = part.store.counts["untaught"]
        if untaught:
            doubts = objective.doubts(itertools.islice(part.rows, EXPLAINED))
            why = " ".join(["as none has an answer within data.length.", *doubts])
            count = sum(records.store.counts["untaught"] for records in parts)
            remarks = [f"nothing is learned from {count:,} rows, {why}"]
        if untaught == len(part):
            raise ConfigError(f"{part.table.where}: nothing is learned from any row, {why}")
    return remarks


def _dropped_rows(records: LabelledRecords) -> str:
    """Returns the numbers, in the file, of the first rows that have no example."""
    dropped = np.setdiff1d(np.arange(len(records.rows)), records.row_of)
    named = [str(records.table.number(int(row))) for row in dropped[:MOST_DROPPED]]
    if len(dropped) > MOST_DROPPED:
        named.append("...")
    return ", ".join(named)


def _described(
    objective: Task, cfg: DataConfig, names: dict[str, str], records: dict[str, LabelledRecords]
) -> list[tuple[str, str]]:
    train = records["train"]
    held = records["eval"]
    mapped = []
    for role, name in names.items():
        mapped.append(role if role == name else f"{role} = {name}")
    columns = ", ".join(mapped)
    held_from = cfg.eval_path or "by a hash of each row"
    read = f"{cfg.path}: {len(train.rows):,} rows, {len(train):,} examples; columns {columns}"
    held_out = f"{held_from}: {len(held.rows):,} rows, {len(held):,} examples"
    described = [("data", read), ("held out", held_out)]
    dropped = sum(part.store.counts["dropped"] for part in records.values())
    cut = sum(part.store.counts["cut"] for part in records.values())
    if cut or dropped:
        text = f"{cut:,} examples cut at data.length={cfg.length} tokens, {dropped:,} rows dropped"
        if train.store.counts["dropped"]:
            text += f" (to train on: {_dropped_rows(train)})"
        described.append(("notice", text))
    labels = objective.published_fields().get("labels", ())
    if labels:
        names_text = ", ".join(labels[:NAMED])
        if len(labels) > NAMED:
            names_text += f", ... ({len(labels)})"
        described.append(("labels", names_text))
    for i in range(min(2, len(train))):
        described.append((f"example {i + 1}", objective.show(train, i)))
    return described


def fingerprint_rows(objective: Task, records: dict[str, LabelledRecords]) -> str:
    """Hashes everything that the examples depend on."""
    train = records["train"]
    tables = [records[name].table.fingerprint for name in SPLITS]
    described = to_config_dict(objective)
    if described.get("learn") == "all":  # what runs did before there was the field
        del described["learn"]
    made_from = [described.to_json(), str((train.length, train.target_length))]
    if train.variables:
        made_from.append(json.dumps(train.variables))
    parts = *tables, train.tokenizer.fingerprint, *made_from, *registry.code_of(type(objective))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
