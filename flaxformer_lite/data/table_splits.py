"""The rows of a table that a task learns from: its columns by role, checked, hashed and split.

A pass over the table finds rows without a label or text, and those to hold out; what it leaves is a
store of the numbers of rows.
"""

import contextlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, DataConfig, plugin_name
from flaxformer_lite.data import find_files, store, store_writer
from flaxformer_lite.data.digests import digest_of, is_cacheable, made_by
from flaxformer_lite.data.rows import RoleRow, Table, TableRows, open_table
from flaxformer_lite.data.split import SPLITS, hash_of, split_rows
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.data.store_writer import Part, StoreWriter
from flaxformer_lite.objectives.rows import StoredColumn
from flaxformer_lite.objectives.tables.task import Column, Task, is_blank
from flaxformer_lite.runtime import progress

FORMAT = "3"  # increase when the rows that are chosen change
# Of each row that is not left out: its number in the table, and a hash of what is not predicted.
CHOSEN = {"row": StoredColumn("int64", ()), "hash": StoredColumn("uint64", ())}
MAX_NAMED_ROWS = 5  # in a message
MAX_COLUMNS_IN_MESSAGE = 12
DROP = "leave such rows out with --config.data.drop_incomplete=True"


class Splits(NamedTuple):
    """The tables of both splits, and remarks about them."""

    tables: dict[str, Table]
    remarks: list[str]


def open_splits(cfg: DataConfig, task: Task) -> Splits:
    """Opens the training and held-out rows that a config names.

    They are two paths, two splits of a folder, or a division of one table by the hash of each row.

    Raises:
      ConfigError: a table or a column cannot be used, or rows lack a label or text.
    """
    where = f"data.path={cfg.path!r}"
    table = open_table(cfg.path, where, root=cfg.cache)
    held_out = None
    if cfg.eval_path:
        eval_where = f"data.eval_path={cfg.eval_path!r}"
        held_out = open_table(cfg.eval_path, eval_where, "eval", root=cfg.cache)
    elif not set(find_files.splits_of(cfg.path)).isdisjoint(find_files.SPLITS["eval"]):
        held_out = open_table(cfg.path, where, "eval", root=cfg.cache)
    if held_out is None:
        chosen = _choose(cfg, task, table, cfg.eval_fraction)
        tables = {split: _take(table, chosen, split) for split in SPLITS}
        return Splits(tables, _remarks(cfg, table, chosen))
    chosen = _choose(cfg, task, table)
    chosen_held = _choose(cfg, task, held_out)
    tables = {"train": _take(table, chosen), "eval": _take(held_out, chosen_held)}
    remarks = _remarks(cfg, table, chosen)
    same = int(np.isin(chosen_held.values("hash"), chosen.values("hash")).sum())
    if same:
        remarks.append(
            f"{same:,} of {len(chosen_held):,} held-out rows ({same / len(chosen_held):.0%}) are"
            " also training rows; their scores say nothing about new rows"
        )
    return Splits(tables, remarks + _remarks(cfg, held_out, chosen_held))


def drop_unusable(cfg: DataConfig, task: Task, table: Table, way: str) -> Table:
    """Returns a table without its incomplete rows, where data.drop_incomplete is set.

    Args:
      cfg: the data section.
      task: decides which values are missing.
      table: the table.
      way: what to do about incomplete rows, beside removing them.

    Raises:
      ConfigError: rows lack a label or text, and are not dropped.
    """
    return _take(table, _choose(cfg, task, table, way=way))


def columns_of(
    objective: Task, table: Table, named: str, *, predicts: bool = False
) -> dict[str, str]:
    """Maps each role of a task to a column, as configured or by a conventional name.

    Args:
      objective: the task.
      table: the table.
      named: the configured columns, as ROLE=NAME,...
      predicts: whether to leave out the columns that the task predicts.

    Raises:
      ConfigError: there is no such column, or none with a conventional name.
    """
    configured = dict(pair.split("=", 1) for pair in named.split(",") if pair)
    roles = {column.role: column for column in objective.columns}
    has = f"has {', '.join(map(repr, table.columns[:MAX_COLUMNS_IN_MESSAGE]))}"
    if len(table.columns) > MAX_COLUMNS_IN_MESSAGE:
        has += ", ..."
    unknown = sorted(set(configured) - set(roles))
    if unknown:
        raise ConfigError(
            f"data.columns={named!r}: {plugin_name(objective)} reads {', '.join(roles)}, not"
            f" {unknown[0]!r}."
        )
    columns = {}
    lacking = []
    for role, column in roles.items():
        if predicts and column.predicted:
            continue
        name = _conventional(table.columns, (role, *column.names))
        if role in configured:
            name = _conventional(table.columns, (configured[role],)) or configured[role]
        if name in table.columns or str(name).partition(".")[0] in table.columns:
            columns[role] = str(name)
        elif role in configured:
            raise ConfigError(
                f"data.columns={named!r}: {table.where} {has}, and no {configured[role]!r}."
            )
        elif not column.optional:
            lacking.append(role)
    flag = "--config.data.columns"
    if table.where.startswith("--data="):
        flag = "--columns"
    if lacking:
        what = "a column for"
        them = "it"
        if len(lacking) > 1:
            what = "columns for"
            them = "them"
        value = ",".join(f"{role}=NAME" for role in lacking)
        raise ConfigError(
            f"{table.where}: {has}, where {plugin_name(objective)} needs {what}"
            f" {' and '.join(map(repr, lacking))}; name {them} with {flag}={value}."
        )
    return columns


def _conventional(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the column that has one of these names.

    An exact match comes first. Failing that, names of two or more letters match regardless of case
    and surrounding spaces.
    """
    for name in names:
        if name in columns:
            return name
    plain = {column.strip().casefold(): column for column in reversed(columns)}
    for name in names:
        if len(name) > 1 and name.casefold() in plain:
            return plain[name.casefold()]
    return None


def by_role(objective: Task, table: Table, named: str, *, predicts: bool = False) -> TableRows:
    """Returns the values of each row by role; None for roles without a column."""
    columns = columns_of(objective, table, named, predicts=predicts)
    return table.rows.by_role(
        {column.role: columns.get(column.role) for column in objective.columns}
    )


def _take(table: Table, chosen: TokenStore, split: str = "train") -> Table:
    numbers = chosen.splits[split]
    if len(numbers) == len(table):
        return table
    return table.take(chosen.values("row")[numbers.start : numbers.stop])


def _remarks(cfg: DataConfig, table: Table, chosen: TokenStore) -> list[str]:
    """Describes rows that are dropped, or whose text is blank."""
    if cfg.drop_incomplete:
        dropped = len(table) - len(chosen)
        return [f"{dropped:,} rows without a label or text are left out"] * (dropped > 0)
    remarks = []
    for name, count in chosen.counts.items():
        role = name.removeprefix("blank ")
        if role != name:
            remarks.append(
                f"{count:,} rows have an empty {role}, such as"
                f" {table.name_rows([chosen.counts[f'first {role}']])};"
                " --config.data.drop_incomplete=True leaves them out"
            )
    return remarks


def _choose(
    cfg: DataConfig, task: Task, table: Table, fraction: float = 0, way: str = DROP
) -> TokenStore:
    """Checks the rows of a table, and divides them; those of a large table once.

    Args:
      cfg: the data section.
      task: decides which values are missing.
      table: the table.
      fraction: share of the rows to hold out, by a hash of their inputs; 0: none.
      way: as in `drop_unusable`.

    Returns:
      A store with CHOSEN. It counts rows whose text is blank by role, under "blank ROLE", and has
      the first under "first ROLE".

    Raises:
      ConfigError: too few different rows to hold out that share; or rows lack a label or text, and
        data.drop_incomplete is off.
    """
    names = columns_of(task, table, cfg.columns)
    rows = by_role(task, table, cfg.columns)

    def write(writer: StoreWriter) -> None:
        what = f"checking the rows of {table.where}"
        with progress.working(what) if table.is_stored else contextlib.nullcontext():
            _write_chosen(cfg, task, table, rows, fraction, way, writer)

    if table.is_stored and is_cacheable(task):
        made_from = [FORMAT, store.FORMAT, *table.identity, fraction, cfg.drop_incomplete, names]
        name = f"store-{digest_of(['chosen', *made_from, *made_by(task)])}"
        chosen = store_writer.open_store(cfg.cache, name, CHOSEN, [Part("0", write)])
    else:
        chosen = store_writer.build_store(CHOSEN, [Part("0", write)])
    if not len(chosen):
        raise ConfigError(f"{table.where}: no row has all of {', '.join(names)}.")
    return chosen


def _write_chosen(
    cfg: DataConfig,
    task: Task,
    table: Table,
    rows: TableRows,
    fraction: float,
    way: str,
    writer: StoreWriter,
) -> None:
    hashes = np.zeros(len(rows), np.uint64)
    complete = np.ones(len(rows), np.bool_)
    lacking: dict[str, list[int]] = {}
    blank: dict[str, list[int]] = {}
    inputs = [column for column in task.columns if not column.predicted]
    needed = [column for column in task.columns if not column.optional]
    for first, batch in rows.batches():
        for column in needed:
            role = column.role
            values = [row[role] for row in batch]
            for at in _odd_values(task, values):
                value = values[at]
                if task.is_missing(role, value):
                    problems = lacking
                elif column.predicted or not isinstance(value, str):
                    continue
                elif is_blank(value, task.missing):
                    problems = blank
                else:
                    continue
                complete[first + at] = False
                _note(problems, role, first + at)
        documents = _documents(batch, inputs)
        hashes[first : first + len(batch)] = [hash_of((document,)) for document in documents]
    if not cfg.drop_incomplete:
        if lacking:
            raise _incomplete(task, table, rows, lacking, way)
        complete[:] = True
        for role, (count, first_row, *_) in _by_first_row(blank):
            writer.count(f"blank {role}", count)
            writer.count(f"first {role}", first_row)
    held = np.zeros(len(rows), np.bool_)
    if fraction:
        held = hashes <= np.uint64(split_rows(hashes[complete], fraction, table.where))
    for split, is_chosen in (("train", complete & ~held), ("eval", complete & held)):
        numbers = np.flatnonzero(is_chosen)
        writer.append_joined(split, len(numbers), {"row": numbers, "hash": hashes[numbers]}, {})


def _note(problems: dict[str, list[int]], role: str, row: int) -> None:
    """Counts a row with a problem; the count stands before the first of the rows."""
    found = problems.setdefault(role, [0])
    found[0] += 1
    if len(found) <= MAX_NAMED_ROWS:
        found.append(row)


def _by_first_row(problems: dict[str, list[int]]) -> list[tuple[str, list[int]]]:
    return sorted(problems.items(), key=lambda item: item[1][1])


def _incomplete(
    task: Task, table: Table, rows: TableRows, lacking: dict[str, list[int]], way: str
) -> ConfigError:
    """Returns the error for rows without a label or text, and what else is doubtful of them."""
    faults = []
    for role, (count, *found) in _by_first_row(lacking):
        words = [rows[row][role] for row in found]
        written = {repr(word) for word in words if isinstance(word, str) and word.strip()}
        counted = ""
        if written:
            verb = "counts" if len(written) == 1 else "count"
            counted = f"; {', '.join(sorted(written))} {verb} as none (objective.missing)"
        named = table.name_rows(found)
        if count == 1:
            faults.append(f"{named} has no {role}{counted}; remove it, or {way}.")
            continue
        if count > len(found):
            named += ", ..."
        faults.append(
            f"{count:,} of {len(table):,} rows have no {role} ({named}){counted}; remove them,"
            f" or {way}."
        )
    return ConfigError(" ".join([f"{table.where}:", *faults, *task.doubts(rows)]))


def _odd_values(task: Task, values: Sequence[object]) -> list[int]:
    """Returns where values of a column are no texts, or texts that may count as missing.

    The task is asked about these alone, as a table has a million others. One of a user's own may
    have other rules, and is asked about all values.
    """
    rule = type(task).is_missing
    # The package's own only take fewer values for missing.
    if rule.__module__.partition(".")[0] != registry.PACKAGE:
        return list(range(len(values)))
    words = {"", *task.missing}
    odd = []
    for at, value in enumerate(values):
        if not isinstance(value, str) or value.strip() in words:
            odd.append(at)
    return odd


def _documents(rows: Sequence[RoleRow], inputs: Sequence[Column]) -> list[str]:
    """Returns the inputs of each row as JSON, whose hash decides its split."""
    as_text = json.JSONEncoder(default=str).encode
    documents = []
    for row in rows:
        values = []
        for column in inputs:
            value = row[column.role]
            if value is not None:
                values.append(as_text(value))
            elif not column.later:
                values.append("null")
        if all(row[column.role] is None for column in inputs):
            # Conversations of preferences have their prompt in what is predicted.
            values = [as_text(value) for value in row.values()]
        documents.append(f"[{', '.join(values)}]")
    return documents
