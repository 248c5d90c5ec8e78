"""Opens the examples of a task: the rows of a table, the task fitted to them, and its records."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data.digests import digest_of, is_cacheable, made_by
from flaxformer_lite.data.encoding import encode_rows, row_errors, train_table_tokenizer
from flaxformer_lite.data.open_tokenizer import check_vocabulary, make_tokenizer
from flaxformer_lite.data.records import Records, Stream
from flaxformer_lite.data.rows import Table, TableRows, open_table
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.data.table_splits import by_role, columns_of, drop_unusable, open_splits
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runtime import garbage, progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text.tokenizer import Tokenizer

MAX_NAMED_LABELS = 12  # most labels that the start of a run prints
MAX_EXPLAINED_ROWS = 1 << 12  # rows that say why nothing is learned from some
MOST_DROPPED = 5  # dropped rows that it names


def open_labelled_stream(
    cfg: ExperimentConfig, labels: tuple[str, ...] = ()
) -> tuple[Task, Stream, list[tuple[str, str]]]:
    """Opens the rows of a table, as `open_labelled`, for the model of an experiment."""
    model = cfg.model
    given: Any = cfg.objective
    task, splits, described = open_labelled(
        cfg.data, given, model.skeleton, labels, types=model.type_vocab_size
    )
    train = splits["train"]
    check_vocabulary(cfg, train.tokenizer)
    assert train.table is not None, "of a table"
    key = fingerprint_rows(cfg.data, task, splits)
    return task, Stream(train.table.source, splits, key, lambda _: train), described


@garbage.skip_old_objects()
def open_labelled(
    cfg: DataConfig, objective: Task, skeleton: str, labels: tuple[str, ...] = (), *, types: int = 2
) -> tuple[Task, dict[str, Records], list[tuple[str, str]]]:
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
    tables, remarks = open_splits(cfg, objective)
    names = columns_of(objective, tables["train"], cfg.columns)
    rows = {name: by_role(objective, part, cfg.columns) for name, part in tables.items()}
    objective = _fitted(cfg, objective, tables["train"], rows["train"], names, labels)
    chosen = make_tokenizer(
        cfg.tokenizer, lambda: train_table_tokenizer(cfg, tables["train"], rows["train"])
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
    classes = read.classes_of(names)

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
) -> Records:
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

    def opened(root: str) -> Records:
        read = open_table(path, f"--data={path}", "eval", root=root)
        if not predicts:
            read = drop_unusable(replace(cfg, cache=root or cfg.cache), task, read, "predict it")
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


def _untaught(objective: Task, parts: Collection[Records]) -> list[str]:
    """Describes examples from which nothing is learned; rejects a table that has no others."""
    remarks = []
    for part in parts:
        untaught = part.store.counts["untaught"]
        if untaught:
            doubts = objective.doubts(itertools.islice(part.rows, MAX_EXPLAINED_ROWS))
            why = " ".join(["as none has an answer within data.length.", *doubts])
            count = sum(records.store.counts["untaught"] for records in parts)
            remarks = [f"nothing is learned from {count:,} rows, {why}"]
        if untaught == len(part) and part.table is not None:
            raise ConfigError(f"{part.table.where}: nothing is learned from any row, {why}")
    return remarks


def _dropped_rows(records: Records) -> str:
    """Names the first rows that have no example."""
    assert records.table is not None, "of a table"
    dropped = np.setdiff1d(np.arange(len(records.rows)), records.table_rows)
    _, _, named = records.table.name_rows(dropped[:MOST_DROPPED].tolist()).partition(" ")
    return f"{named}, ..." if len(dropped) > MOST_DROPPED else named


def _described(
    objective: Task, cfg: DataConfig, names: dict[str, str], records: dict[str, Records]
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
        names_text = ", ".join(labels[:MAX_NAMED_LABELS])
        if len(labels) > MAX_NAMED_LABELS:
            names_text += f", ... ({len(labels)})"
        described.append(("labels", names_text))
    for i in range(min(2, len(train))):
        described.append((f"example {i + 1}", objective.show(train, i)))
    return described


def fingerprint_rows(cfg: DataConfig, objective: Task, records: Mapping[str, Records]) -> str:
    """Hashes everything that the examples of a table depend on."""
    train = records["train"]
    tables = [part.table.fingerprint for part in records.values() if part.table is not None]
    described = to_config_dict(objective)
    if described.get("learn") == "all":  # what runs did before there was the field
        del described["learn"]
    made_from = [described.to_json(), str((train.length, train.target_length))]
    variables = json.loads(cfg.chat.variables or "{}")
    if variables:
        made_from.append(json.dumps(variables))
    labels = described.get("labels") or ()
    for part in records.values():
        assert part.table is not None and isinstance(part.rows, TableRows), "of a table"
        for names in part.table.classes_of(part.rows.names or {}).values():
            # Runs that were begun when a number was always a place among the labels are refused.
            if set(names) <= set(labels) and names != tuple(labels[: len(names)]):
                made_from.append(json.dumps(names))
    parts = *tables, train.tokenizer.fingerprint, *made_from, *registry.code_of(type(objective))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
