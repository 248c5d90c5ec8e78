"""Encodes the rows of a table as the records of a task, in a store."""

import bisect
import contextlib
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig, plugin_name
from flaxformer_lite.data.digests import digest_of, is_cacheable, made_by
from flaxformer_lite.data.open_tokenizer import train_tokenizer
from flaxformer_lite.data.records import Records
from flaxformer_lite.data.rows import Table, TableRows
from flaxformer_lite.data.store import FORMAT
from flaxformer_lite.data.store_writer import Part, StoreWriter, build_store, open_store
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.rows import ClassNames, StoredColumn
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runtime import progress
from flaxformer_lite.text import conversations
from flaxformer_lite.text.special_tokens import Frame, Spans
from flaxformer_lite.text.tokenizer import Tokenizer

BATCH_TEXTS = 1024  # texts tokenized at a time
MAX_ROWS = 1024  # that a task encodes at a time
MAX_BYTES = 2_000_000  # of these rows, unless one has more
PART_ROWS = 1 << 18  # rows of a large table that one process encodes at a time
# What a store has beside the columns of a task: the number of the table row of each record, and of
# the tokens that it has lost.
KEPT = {"row": StoredColumn("int64", ()), "cut": StoredColumn("int32", ())}
COUNTED = ("cut", "dropped", "untaught")  # see Records
HASH_BYTES = 8  # of the keys of texts
MAX_TRIED_ROWS = 64  # rows that are tried with greater lengths, where none fits
SAMPLED_ROWS = 1 << 12  # by which the characters of a table are estimated
MAX_DOUBLINGS = 16  # of the length


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encodes the texts of a table for a task.

    Attributes:
      tokenizer: gives the special ids, too.
      frame: the special tokens around texts.
      length: most tokens of an example.
      target_length: of its decoder side, or 0.
      skeleton: the model's.
      rows: all rows of the table, by role.
      variables: of chat templates.
      classes: the names of the classes that the table numbers, by role.
      known: what `has` remembers.
    """

    tokenizer: Tokenizer
    frame: Frame
    length: int
    target_length: int
    skeleton: str
    rows: TableRows
    variables: Json
    classes: ClassNames
    known: dict[str, bool] = field(default_factory=dict)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenizes texts without special tokens."""
        batches = map(self.tokenizer.encode_batch, _batches(texts))
        return list(itertools.chain.from_iterable(batches))

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Tokenizes texts like `token_ids`, with the characters that each token stands for."""
        batches = map(self.tokenizer.encode_spans, _batches(texts))
        return list(itertools.chain.from_iterable(batches))

    def conversations(
        self, template: str, chats: Sequence[Json], learn: str
    ) -> list[conversations.Conversation]:
        """Tokenizes conversations by a chat template, with the tokens of answers marked.

        See text/conversations.py.
        """
        return conversations.encode(
            self.tokenizer, template, [self.variables | chat for chat in chats], learn=learn
        )

    def keys(self, texts: Sequence[str]) -> np.ndarray:
        """Hashes texts, [N] uint64, for columns of the dtype "key"."""
        hashes = [hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest() for text in texts]
        return np.frombuffer(b"".join(hashes), "<u8")

    def has(self, role: str) -> bool:
        """Returns whether any row has a value for this role."""
        if role not in self.known:
            names = self.rows.names
            has_column = names is None or names[role] is not None
            self.known[role] = has_column and any(row[role] is not None for row in self.rows)
        return self.known[role]


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH_TEXTS):
        yield list(texts[start : start + BATCH_TEXTS])


def encode_rows(
    objective: Task,
    cfg: DataConfig,
    read: Table,
    rows: TableRows,
    chosen: Tokenizer,
    skeleton: str,
    types: int = 2,
    *,
    root: str = "",
) -> Records:
    """Tokenizes rows into the task's records.

    Those of a memory-mapped table are cached under `root`.

    Raises:
      ConfigError: a row cannot be encoded, or none has a record; or the task does not declare what
        `encode` returns.
    """
    _check_declared(objective)
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    frame = chosen.frame(skeleton)
    if types < 2:
        frame = replace(frame, second_type=0)
    variables = json.loads(cfg.chat.variables or "{}")
    classes = read.classes_of(rows.names or {})
    encoder = Encoder(chosen, frame, length, target_length, skeleton, rows, variables, classes)
    columns = {**objective.stored, **KEPT}
    parts = []
    for first in range(0, len(rows), PART_ROWS):
        part = range(first, min(first + PART_ROWS, len(rows)))
        write = functools.partial(_write_records, objective, encoder, read, part)
        parts.append(Part(str(first), write))
    if root and read.is_stored and is_cacheable(objective):
        name = f"store-{digest_of(_made_from(objective, encoder, read))}"
        store = open_store(root, name, columns, parts, chosen.vocab_size)
    else:
        store = build_store(columns, parts, chosen.vocab_size)
    if not len(store):
        raise ConfigError(
            f"{read.where}: none of the {len(rows):,} rows taken from it to train on or to hold"
            f" out fits into an example; raise data.length={cfg.length}"
            f"{_sufficient_length(objective, cfg, encoder)}."
        )
    records = Records(
        chosen,
        length,
        target_length,
        store,
        tuple(objective.stored),
        frame=frame,
        skeleton=skeleton,
        table=read,
        rows=rows,
    )
    return replace(records, sizes=_count_tokens(records, objective.stored))


def train_table_tokenizer(cfg: DataConfig, read: Table, rows: TableRows) -> Path:
    """Returns the folder of a tokenizer that is trained on the rows, unless it is cached."""

    def sample(every: int) -> Iterator[str]:
        with progress.working(f"training the {cfg.tokenizer.name} tokenizer"):
            yield from _texts(rows.take(np.arange(0, len(rows), every)))

    data: list[object] = ["labelled", *read.identity, rows.names]
    return train_tokenizer(cfg, data, lambda: _characters(rows), sample)


def _characters(rows: TableRows) -> float:
    """Estimates the number of characters in the texts of all rows."""
    sample = rows.take(np.arange(0, len(rows), max(1, len(rows) // SAMPLED_ROWS)))
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


def _count_tokens(records: Records, stored: Mapping[str, StoredColumn]) -> np.ndarray:
    """Returns the tokens of each record on each side of the model, int32 [records, sides].

    They are as many as an example has where no tokens are stored.
    """
    if "text_lengths" in stored:
        longest = np.zeros(len(records), np.int32)
        count = records.lengths("text_lengths")
        np.maximum.at(
            longest, np.repeat(np.arange(len(records)), count), records.column("text_lengths")
        )
        return longest[:, None]
    sides = [name for name, column in stored.items() if column.dtype == "token"]
    if "ids" in sides:
        sides = ["ids"]
    if not sides:
        return np.full((len(records), 1), records.length, np.int32)
    return np.stack([records.lengths(side) for side in sides], axis=1)


def _teaches(record: Json) -> bool:
    """Returns whether there is something to learn from a record, or only to predict."""
    return "answers" not in record or bool(np.any(record["answers"]))


def _check_declared(objective: Task) -> None:
    if not objective.stored:
        raise ConfigError(
            f"{plugin_name(objective)}: declares no stored columns for what `encode` returns; add"
            " `stored`, as docs/fine-tuning.md shows."
        )
    taken = sorted(KEPT.keys() & objective.stored.keys())
    if taken:
        raise ConfigError(
            f"{plugin_name(objective)}.stored: {taken[0]!r} is a column that each store has; rename"
            " it."
        )


def _write_records(
    objective: Task, encoder: Encoder, read: Table, rows: range, writer: StoreWriter
) -> None:
    for name in COUNTED:
        writer.count(name, 0)
    shown: contextlib.AbstractContextManager[Callable[[int], None]]
    shown = contextlib.nullcontext(lambda count: None)
    if read.is_stored:
        shown = progress.count_progress("tokenizing rows", len(rows))
    with shown as advance:
        batches = encoder.rows.batches(rows, max_rows=MAX_ROWS, max_bytes=MAX_BYTES)
        for first, batch in batches:
            with row_errors(read, first):
                made = objective.encode(batch, encoder)
            if len(made) != len(batch):
                raise ConfigError(
                    f"{plugin_name(objective)}.encode: returns {len(made)} lists of records for"
                    f" {len(batch)} rows; return one for each, empty if a row has none."
                )
            records: list[Json] = []
            for row, of_row in zip(range(first, first + len(batch)), made, strict=True):
                records += [{"cut": 0, **record, "row": row} for record in of_row]
            writer.count("cut", sum(bool(record["cut"] > 0) for record in records))
            writer.count("dropped", sum(not of_row for of_row in made))
            writer.count("untaught", sum(not _teaches(record) for record in records))
            # Each split of a table is a store of its own.
            writer.append("train", records)
            advance(len(batch))


def _made_from(objective: Task, encoder: Encoder, read: Table) -> list[Any]:
    """Returns what the content of a store depends on."""
    parts = [
        FORMAT,
        *read.identity,
        encoder.rows.names,
        encoder.classes,
        encoder.length,
        encoder.target_length,
        encoder.skeleton,
        encoder.tokenizer.fingerprint,
        astuple(encoder.frame),
        *made_by(objective),
    ]
    if encoder.variables:
        parts.append(json.dumps(encoder.variables))
    return parts


def _sufficient_length(objective: Task, cfg: DataConfig, encoder: Encoder) -> str:
    """Returns a hint with the least data.length at which one of the first rows fits."""
    rows = encoder.rows[:MAX_TRIED_ROWS]

    def fits(length: int) -> bool:
        sizes = objective.lengths(length, cfg.target_length)
        longer = replace(encoder, length=sizes[0], target_length=sizes[1])
        return any(objective.encode(rows, longer))

    powers = (cfg.length << power for power in range(1, MAX_DOUBLINGS))
    most = next(filter(fits, powers), None)
    if most is None:
        return ""
    least = bisect.bisect_left(range(most), True, lo=most // 2, key=fits)
    return f" to {least} or more"


@contextlib.contextmanager
def row_errors(read: Table, first: int = 0) -> Iterator[None]:
    """Prefixes a task's errors about `row N` with the table, and names the row as in the file.

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
            named = read.name_rows([first + int(match[1]) - 1])
            message = f"{read.where}: {named}{message[match.end() :]}"
        raise ConfigError(message) from None
