"""Labelled rows of a table as examples: columns, split, tokenizer and the task's features."""

import bisect
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data import stored, table
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.data.scan import RoleRow, RoleRows, Scan, scan, shared
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.data.table import Table
from flaxformer_lite.objectives.tables.chat import Messages
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text import conversations, tokenizer, tokenizer_training
from flaxformer_lite.text.special_tokens import Frame, Spans
from flaxformer_lite.text.tokenizer import Tokenizer

DROP = "leave such rows out with --config.data.drop_incomplete=True"
BATCH = 1024  # texts tokenized at a time
CHUNK = 1 << 12  # rows of a large table encoded at a time
NAMED = 12  # most columns that a message names
FORMAT = "1"  # increase when the files of encoded rows change
TRIED = 64  # rows that are tried with greater lengths, where none fits
DOUBLINGS = 16  # of the length
DIGEST = 16  # bytes that stand for a text
NO_FILE = ("abc", "builtins", "typing", "__main__")  # modules of base classes that are not hashed
SOURCES = ("data", "objectives", "text/chat_template.py")  # what the features of rows depend on


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """The examples of a table's rows; a row may have several (a long context in strides) or none.

    Those of a large table are mapped from files: its rows, features, sizes and row_of are indexed
    alike.
    """

    tokenizer: Tokenizer  # gives the special ids
    frame: Frame  # the special tokens around texts
    length: int  # tokens of an example
    target_length: int  # of its decoder side, or 0
    table: Table  # as it was read
    rows: Sequence[RoleRow]  # its values by role
    # one per example, made of its row by the task
    features: Sequence[Any] = field(default_factory=list)
    # [examples, ...] predictions of the starting weights, if the task needs them
    reference: np.ndarray | None = None
    # [examples]; empty where rows share one
    row_of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    skeleton: str = "encoder"  # the model's
    # [examples, 1 or 2] tokens of each, and of its decoder side if it has one
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int32))
    cut: int = 0  # examples that lost tokens, as they were too long
    dropped: int = 0  # rows without an example
    first: int = 0  # the number of the first row that `encode` gets
    known: dict[str, Any] = field(default_factory=dict)  # what `has` and `number` remember

    def __len__(self) -> int:
        return len(self.features)

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each example, [examples] int32, without padding and decoder side."""
        return self.sizes[:, 0]

    def column(self, *place: int) -> np.ndarray:
        """Returns the number or array at a path in the features, stacked over all examples."""
        if isinstance(self.features, stored.StoredFeatures):
            return self.features.column(*place)
        picked = []
        for feature in self.features:
            picked.append(functools.reduce(operator.getitem, place, feature))
        return np.stack(picked)

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Tokenizes texts without special tokens."""
        spans: list[Spans] = []
        for start in range(0, len(texts), BATCH):
            spans += self.tokenizer.encode_spans(list(texts[start : start + BATCH]))
        return spans

    def conversations(
        self, template: str, chats: Sequence[Messages], known: Sequence[bool]
    ) -> list[conversations.Conversation]:
        """Tokenizes conversations by a chat template, with the tokens of answers marked.

        See text/conversations.py.
        """
        return conversations.encode(self.tokenizer, template, chats, known=known)

    def has(self, role: str) -> bool:
        """Returns whether any row has a value for this role."""
        if role not in self.known:
            has_column = not isinstance(self.rows, RoleRows) or self.rows.names[role] is not None
            self.known[role] = has_column and any(row[role] is not None for row in self.rows)
        return self.known[role]

    def number(self, texts: Sequence[str]) -> list[int]:
        """Numbers texts by first occurrence in the table; equal texts have the same number."""
        seen = self.known.setdefault("\0texts", {})
        numbers = []
        for text in texts:
            digest = hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()
            numbers.append(seen.setdefault(digest, len(seen)))
        return numbers


def open_labelled(
    cfg: DataConfig, objective: Task, skeleton: str, labels: tuple[str, ...] = (), *, types: int = 2
) -> tuple[Task, dict[str, LabelledRecords], list[tuple[str, str]]]:
    """Reads the rows that a config names.

    Args:
      cfg: the data section.
      objective: a `Task` of objectives/tables/task.py.
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
    tables, remarks = _split(cfg, objective)
    names = columns_of(objective, tables["train"], cfg.columns)
    rows = {name: by_role(objective, part, cfg.columns) for name, part in tables.items()}
    objective = _fitted(cfg, objective, tables["train"], rows["train"], names, labels)
    chosen = _tokenizer(cfg, tables["train"], rows["train"])
    records = {}
    for name in SPLITS:
        records[name] = encode(
            objective, cfg, tables[name], rows[name], chosen, skeleton, types, root=cfg.cache
        )
    remarks += objective.remarks(records)
    described = _described(objective, cfg, names, records)
    described += [("warning", remark) for remark in remarks]
    train = records["train"]
    joined = objective.join(train.features, train)
    if len(joined) < len(train):
        described.append(("packed", f"{len(train):,} training examples in {len(joined):,}"))
        first = getattr(joined, "first", None)
        if first is None:
            sizes = np.asarray([objective.tokens(feature) for feature in joined])
        else:
            sizes = np.add.reduceat(train.sizes, first[:-1])
        row_of = np.zeros(0, np.int64)
        records["train"] = replace(train, features=joined, row_of=row_of, sizes=sizes)
    return objective, records, described


def _fitted(
    cfg: DataConfig,
    objective: Task,
    read: Table,
    rows: Sequence[RoleRow],
    names: dict[str, str],
    labels: tuple[str, ...],
) -> Task:
    """Returns the task fitted to the training rows, for example with its labels."""
    classes = {role: read.names[name] for role, name in names.items() if name in read.names}

    def fit() -> Task:
        with _row_errors(read):
            return objective.fit(rows, classes, labels)

    if not read.is_stored or not _is_kept(objective):
        return fit()

    def write(folder: Path) -> None:
        with progress.working("reading the labels"):
            fitted = fit()
        (folder / "task.json").write_text(to_config_dict(fitted).to_json())

    parts = [*read.identity, names, classes, labels, *_made_by(objective)]
    folder = content_cache.folder(cfg.cache, f"task-{_hash(parts)}", write)
    values = json.loads((folder / "task.json").read_text())
    return from_config_dict(type(objective), values, where="objective")


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
      task: the trained one.
      chosen: the run's tokenizer.
      skeleton, types: the model's, as in `open_labelled`.
      predicts: whether the columns that the task predicts are to be ignored, as new data may hold
        anything there.

    Raises:
      ConfigError: as `open_labelled`.
    """

    def opened(root: str) -> LabelledRecords:
        read = table.read_table(path, f"--data={path}", "eval", root=root)
        if not predicts:
            read = _usable_rows(replace(cfg, cache=root or cfg.cache), task, read, "predict it")[0]
        rows = by_role(task, read, cfg.columns, predicts=predicts)
        return encode(task, cfg, read, rows, chosen, skeleton, types, root=root)

    try:
        # On this machine: other hosts have no use for the rows.
        return opened(str(content_cache.local(cfg.cache)))
    except content_cache.NotWritable:  # as where the model was moved to another machine
        return opened("")


def encode(
    objective: Task,
    cfg: DataConfig,
    read: Table,
    rows: Sequence[RoleRow],
    chosen: Tokenizer,
    skeleton: str,
    types: int = 2,
    *,
    root: str = "",
) -> LabelledRecords:
    """Tokenizes rows into the task's examples.

    The examples of a memory-mapped table are cached under `root`.
    """
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    frame = chosen.frame(skeleton)
    if types < 2:
        frame = replace(frame, second_type=0)
    reader = LabelledRecords(chosen, frame, length, target_length, read, rows, skeleton=skeleton)
    records = None
    if root and read.is_stored and _is_kept(objective):
        with contextlib.suppress(stored.Unstorable):
            records = _encoded_in_files(objective, reader, root)
    if records is None:
        records = _encoded(objective, reader)
    if not len(records):
        raise ConfigError(
            f"{read.where}: no row of it fits into an example; raise data.length={cfg.length}"
            f"{_sufficient_length(objective, cfg, reader)}."
        )
    return records


def _sufficient_length(objective: Task, cfg: DataConfig, reader: LabelledRecords) -> str:
    """Returns a hint with the least data.length at which one of the first rows fits."""
    rows = reader.rows[:TRIED]

    def fits(length: int) -> bool:
        sizes = objective.lengths(length, cfg.target_length)
        longer = replace(reader, length=sizes[0], target_length=sizes[1])
        return any(objective.encode(rows, longer))

    powers = (cfg.length << power for power in range(1, DOUBLINGS))
    most = next(filter(fits, powers), None)
    if most is None:
        return ""
    least = bisect.bisect_left(range(most), True, lo=most // 2, key=fits)
    return f" to {least} or more"


def _encoded(objective: Task, reader: LabelledRecords) -> LabelledRecords:
    """Encodes all rows in memory."""
    with _row_errors(reader.table):
        made = objective.encode(reader.rows, reader)
    features = list(itertools.chain.from_iterable(made))
    row_of = np.repeat(np.arange(len(reader.rows)), list(map(len, made)))
    return replace(
        reader,
        features=features,
        row_of=row_of,
        sizes=_sizes(objective, features),
        cut=sum(map(_is_cut, features)),
        dropped=sum(not examples for examples in made),
    )


def _encoded_in_files(objective: Task, reader: LabelledRecords, root: str) -> LabelledRecords:
    """Encodes rows in chunks into files, or reads these from the cache."""
    step = len(reader.rows)
    if _is_chunked(objective):
        step = min(CHUNK, getattr(reader.rows, "chunk", CHUNK))

    def write(folder: Path) -> None:
        cut = 0
        dropped = 0
        total = len(reader.rows)
        with (
            (folder / "row_of").open("wb") as row_of,
            (folder / "sizes").open("wb") as sizes,
            stored.FeatureWriter(folder) as features,
            progress.counting("tokenizing rows", total) as advance,
        ):
            for first in range(0, total, step):
                rows = reader.rows[first : first + step]
                with _row_errors(reader.table, first):
                    made = objective.encode(rows, replace(reader, first=first))
                examples = list(itertools.chain.from_iterable(made))
                counts = list(map(len, made))
                row_of.write(np.repeat(np.arange(first, first + len(rows)), counts).tobytes())
                sizes.write(_sizes(objective, examples).tobytes())
                features.add(examples)
                cut += sum(map(_is_cut, examples))
                dropped += sum(not examples for examples in made)
                advance(len(rows))
        (folder / "encoded.json").write_text(json.dumps({"cut": cut, "dropped": dropped}))

    frame = [getattr(reader.frame, field.name) for field in fields(reader.frame)]
    parts = [
        FORMAT,
        *reader.table.identity,
        reader.rows.names if isinstance(reader.rows, RoleRows) else "",
        reader.length,
        reader.target_length,
        reader.skeleton,
        reader.tokenizer.fingerprint,
        frame,
        *_made_by(objective),
    ]
    folder = content_cache.folder(root, f"examples-{_hash(parts)}", write)
    features = stored.StoredFeatures(folder)
    sizes = stored.mapped(folder / "sizes", np.int32)
    return replace(
        reader,
        features=features,
        row_of=stored.mapped(folder / "row_of", np.int64),
        sizes=sizes.reshape(len(features), -1) if len(features) else reader.sizes,
        **json.loads((folder / "encoded.json").read_text()),
    )


def _sizes(objective: Task, features: Sequence[Any]) -> np.ndarray:
    sizes = [objective.tokens(feature) for feature in features]
    if not sizes:
        return np.zeros((0, 1), np.int32)
    return np.asarray(sizes, np.int32)


def _is_cut(feature: Any) -> bool:
    return getattr(feature, "cut", getattr(feature[0], "cut", 0)) > 0


def _is_chunked(objective: Task) -> bool:
    """Returns whether the class that defines `encode` declares that it accepts chunks of rows."""
    definer = next(cls for cls in type(objective).__mro__ if "encode" in vars(cls))
    return "chunked" in vars(definer) and bool(objective.chunked)


def _is_kept(objective: Task) -> bool:
    """Returns whether the features of a task may be cached.

    Those of a class defined in a notebook may not, because its code can change unseen.
    """
    return all(cls.__module__ != "__main__" for cls in type(objective).__mro__)


def _made_by(objective: Task) -> list[str]:
    """Returns what the features of a row depend on besides the row: the task's fields and code."""
    digest = hashlib.sha256(_code().encode())
    for cls in type(objective).__mro__:
        if cls.__module__.partition(".")[0] not in (registry.PACKAGE, *NO_FILE):
            digest.update(Path(inspect.getfile(cls)).read_bytes())
    return [plugin_name(objective), to_config_dict(objective).to_json(), digest.hexdigest()]


@functools.cache
def _code() -> str:
    """Hashes the files of this package that the features of a row depend on."""
    package = Path(registry.__file__).parent
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in _python_files(package / name):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _python_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(path.glob("*.py"))


@contextlib.contextmanager
def _row_errors(read: Table, first: int = 0) -> Iterator[None]:
    """Prefixes a task's errors about `row N` with the table, and numbers the row as in the file.

    Args:
      read: the table.
      first: the index of the row that the task numbers 1.
    """
    try:
        yield
    except ConfigError as error:
        message = str(error)
        match = re.match(r"row (\d+)\b", message)
        if match:
            number = read.number(first + int(match[1]) - 1)
            message = f"{read.where}: row {number}{message[match.end() :]}"
        raise ConfigError(message) from None


def columns_of(
    objective: Task, read: Table, named: str, *, predicts: bool = False
) -> dict[str, str]:
    """Maps each role of a task to a column, as configured or by a conventional name.

    Raises:
      ConfigError: there is no such column, or none with a usual name.
    """
    flag = "--columns" if read.where.startswith("--data=") else "--config.data.columns"
    configured = dict(pair.split("=", 1) for pair in named.split(",") if pair)
    roles = {column.role: column for column in objective.columns}
    has = f"has {', '.join(map(repr, read.columns[:NAMED]))}"
    if len(read.columns) > NAMED:
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
        name = configured.get(role) or _conventional(read.columns, (role, *column.names))
        if name in read.columns or str(name).partition(".")[0] in read.columns:
            columns[role] = str(name)
        elif role in configured:
            raise ConfigError(
                f"data.columns={named!r}: {read.where} {has}, and no {configured[role]!r}."
            )
        elif not column.optional:
            lacking.append(role)
    if lacking:
        is_one = len(lacking) == 1
        what = "a column for" if is_one else "columns for"
        them = "it" if is_one else "them"
        value = ",".join(f"{role}=NAME" for role in lacking)
        raise ConfigError(
            f"{read.where}: {has}, where {plugin_name(objective)} needs {what}"
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


def by_role(
    objective: Task, read: Table, named: str, *, predicts: bool = False
) -> Sequence[RoleRow]:
    """Returns the values of each row by role; None for roles without a column."""
    names = columns_of(objective, read, named, predicts=predicts)
    rows = RoleRows(read.rows, [column.role for column in objective.columns], names)
    if read.is_stored:
        return rows
    return list(rows)


def _split(cfg: DataConfig, objective: Task) -> tuple[dict[str, Table], list[str]]:
    """Reads the training and held-out rows, with remarks about them.

    They come from two files, from two splits of a folder, or from a split by the hash of each row.
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
    same = shared(train_scan, held_scan)
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
    if _is_kept(objective):
        cached = cfg.cache, _hash([names, *_made_by(objective)])
    result = scan(read, rows, objective, fraction, drops=drops, cached=cached)
    if not drops:
        result.check(read, way)
    if not result.complete.any():
        raise ConfigError(f"{read.where}: no row has all of {', '.join(names)}.")
    return result


def _hash(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _tokenizer(cfg: DataConfig, read: Table, rows: Sequence[RoleRow]) -> Tokenizer:
    if cfg.tokenizer.path:
        return open_tokenizer(cfg.tokenizer.path)
    if cfg.tokenizer.name == "bytes":
        return tokenizer.Bytes()

    def write(folder: Path) -> None:
        name = cfg.tokenizer.name
        every = max(1, math.ceil(_characters(rows) / tokenizer_training.MOST[name]))
        sample = itertools.islice(rows, 0, None, every)
        with progress.working(f"training the {name} tokenizer"):
            tokenizer_training.train(cfg.tokenizer, _texts(sample)).save(folder)

    parts = "labelled", read.fingerprint, cfg.columns, *cfg.tokenizer.training
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return tokenizer.load(content_cache.folder(cfg.cache, f"tokenizer-{digest}", write))


def _characters(rows: Sequence[RoleRow]) -> float:
    """Returns about how many characters the texts of all rows have."""
    sample = [rows[i] for i in range(0, len(rows), max(1, len(rows) // CHUNK))]
    return sum(map(len, _texts(sample))) / len(sample) * len(rows)


def _texts(value: object) -> Iterator[str]:
    """Yields all texts within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, itertools.islice)):
        for inner in value:
            yield from _texts(inner)


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
    dropped = sum(part.dropped for part in records.values())
    cut = sum(part.cut for part in records.values())
    if cut or dropped:
        text = f"{cut:,} examples cut at data.length={cfg.length} tokens, {dropped:,} rows dropped"
        described.append(("notice", text))
    labels = objective.class_names
    if labels:
        names_text = ", ".join(labels[:NAMED])
        if len(labels) > NAMED:
            names_text += f", ... ({len(labels)})"
        described.append(("labels", names_text))
    for i in range(min(2, len(train))):
        described.append((f"example {i + 1}", objective.show(train, i)))
    return described


def fingerprint(objective: Task, records: dict[str, LabelledRecords]) -> str:
    """Hashes everything that the examples depend on."""
    train = records["train"]
    tables = [records[name].table.fingerprint for name in SPLITS]
    made_by = to_config_dict(objective).to_json(), str((train.length, train.target_length))
    parts = *tables, train.tokenizer.fingerprint, *made_by, *registry.code_of(type(objective))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
