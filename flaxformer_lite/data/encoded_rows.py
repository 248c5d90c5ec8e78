"""The rows of a table encoded as the examples of a task, in memory or in cached files."""

import bisect
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, DataConfig, plugin_name, to_config_dict
from flaxformer_lite.data import stored
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.scan import RoleRow, RoleRows
from flaxformer_lite.data.store import (
    FORMAT,
    Part,
    StoreWriter,
    TokenStore,
    build_store,
    open_store,
)
from flaxformer_lite.data.stored_features import FeatureWriter, StoredFeatures
from flaxformer_lite.data.table import Table
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.row_plans import RowPlan, share_rows
from flaxformer_lite.objectives.rows import Record, StoredColumn
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text import conversations
from flaxformer_lite.text.special_tokens import Frame, Spans
from flaxformer_lite.text.tokenizer import Tokenizer

BATCH = 1024  # texts tokenized at a time
MAX_ROWS = 1024  # that a task encodes at a time
MAX_CHARACTERS = 2_000_000  # of these rows, unless one has more
PART_ROWS = 1 << 18  # rows of a large table that one process encodes at a time
# What a store has beside the columns of a task: the number of the table row of each record, and of
# the tokens that it has lost.
KEPT = {"row": StoredColumn("int64", ()), "cut": StoredColumn("int32", ())}
HASH_BYTES = 8  # of the keys of texts
CHUNK = 1 << 12  # rows of a large table encoded at a time
TRIED = 64  # rows that are tried with greater lengths, where none fits
DOUBLINGS = 16  # of the length
DIGEST = 16  # bytes that stand for a text
NO_FILE = ("abc", "builtins", "typing", "__main__")  # modules of base classes that are not hashed
SOURCES = ("data", "objectives", "text")  # what the features of rows depend on


@dataclass(frozen=True, eq=False)
class Encoder:
    """What a task encodes rows with.

    Attributes:
      rows: all rows of the table, by role.
      variables: of chat templates.
      known: what `has` remembers.
    """

    tokenizer: Tokenizer
    frame: Frame
    length: int
    target_length: int
    skeleton: str
    rows: Sequence[RoleRow]
    variables: Json
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
            has_column = not isinstance(self.rows, RoleRows) or self.rows.names[role] is not None
            self.known[role] = has_column and any(row[role] is not None for row in self.rows)
        return self.known[role]


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
    untaught: int = 0  # examples from which nothing is learned
    first: int = 0  # the number of the first row that `encode` gets
    variables: Json = field(default_factory=dict)  # of chat templates
    known: dict[str, Any] = field(default_factory=dict)  # what `has` and `number` remember
    store: TokenStore | None = None
    names: tuple[str, ...] = ()  # of the columns that the task has declared
    # where examples share rows: example i has the records joined[i] .. joined[i + 1] - 1
    joined: np.ndarray | None = None

    def __len__(self) -> int:
        if self.joined is not None:
            return len(self.joined) - 1
        return len(self.features) if self.store is None else len(self.store)

    def record(self, example: int) -> Record:
        """Returns the record of an example, or the first of several."""
        return self._read(example if self.joined is None else int(self.joined[example]))

    def pieces(self, example: int) -> list[Record]:
        """Returns all records of an example."""
        return list(map(self._read, self._records_of(example)))

    def tokens_cut(self, example: int) -> list[int]:
        """Returns the number of tokens that each record of an example has lost."""
        if self.store is None:
            return tokens_cut(self.features[example])
        return self.column("cut")[self._records_of(example)].tolist()

    def table_row(self, example: int) -> tuple[RoleRow, int]:
        """Returns the row of an example's first record by role, and its number from 0."""
        number = self.rows_of(example)[0]
        return self.rows[number], number

    def rows_of(self, example: int) -> list[int]:
        """Returns the numbers of the table rows that an example is made from."""
        return self.column("row")[self._records_of(example)].tolist()

    def lengths(self, name: str) -> np.ndarray:
        """Returns the lengths of all records' entries in a column, [records] int32."""
        return self.store.lengths(name)

    @functools.cached_property
    def num_texts(self) -> int:
        """The most texts of a record, where the store has `text_lengths`."""
        return int(self.lengths("text_lengths").max())

    def text_lengths(self, examples: np.ndarray, texts: int) -> np.ndarray:
        """Returns the tokens of each text of examples, [examples, texts]; 1 for a lacking one."""
        if "text_lengths" not in self.store:
            return self.sizes[examples, :1]
        offsets = self.store.offsets("text_lengths")
        values = self.store.values("text_lengths")
        place = offsets[examples][:, None] + np.arange(texts)
        is_text = place < offsets[examples + 1][:, None]
        return np.where(is_text, values[np.minimum(place, len(values) - 1)], 1)

    def _records_of(self, example: int) -> range:
        if self.joined is None:
            return range(example, example + 1)
        return range(int(self.joined[example]), int(self.joined[example + 1]))

    def _read(self, record: int) -> Record:
        return {name: self.store.entry(record, name) for name in self.names}

    def column(self, *place: Any) -> np.ndarray:
        """Returns the number or array at a path in the features, stacked over all examples."""
        if self.store is not None:
            return self.store.values(place[0])
        if isinstance(self.features, StoredFeatures):
            return self.features.column(*place)
        picked = []
        for feature in self.features:
            picked.append(functools.reduce(operator.getitem, place, feature))
        return np.stack(picked)

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

    def has(self, role: str) -> bool:
        """Returns whether any row has a value for this role."""
        if role not in self.known:
            has_column = not isinstance(self.rows, RoleRows) or self.rows.names[role] is not None
            self.known[role] = has_column and any(row[role] is not None for row in self.rows)
        return self.known[role]

    def number(self, texts: Sequence[str]) -> list[int]:
        """Numbers texts by first occurrence in the table; equal texts have the same number."""
        # A key that no role has, as `has` keeps its answers here too.
        seen = self.known.setdefault("\0texts", {})
        numbers = []
        for text in texts:
            digest = hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()
            numbers.append(seen.setdefault(digest, len(seen)))
        return numbers


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH):
        yield list(texts[start : start + BATCH])


def encode_rows(
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
    reader = replace(reader, variables=json.loads(cfg.chat.variables or "{}"))
    if objective.stored:
        records = _stored_records(objective, reader, root)
        if not len(records):
            raise _nothing_fits(objective, cfg, reader)
        return records
    records = None
    if root and read.is_stored and is_cacheable(objective):
        with contextlib.suppress(stored.Unstorable):
            records = _encoded_in_files(objective, reader, root)
    if records is None:
        records = _encoded(objective, reader, slice(None))
    if not len(records):
        raise _nothing_fits(objective, cfg, reader)
    return records


def _nothing_fits(objective: Task, cfg: DataConfig, reader: LabelledRecords) -> ConfigError:
    return ConfigError(
        f"{reader.table.where}: none of the {len(reader.rows):,} rows taken from it to train on or"
        f" to hold out fits into an example; raise data.length={cfg.length}"
        f"{_sufficient_length(objective, cfg, reader)}."
    )


def _stored_records(objective: Task, reader: LabelledRecords, root: str) -> LabelledRecords:
    """Encodes rows into a store, in files or in memory, or maps the one of the cache."""
    encoder = Encoder(
        reader.tokenizer,
        reader.frame,
        reader.length,
        reader.target_length,
        reader.skeleton,
        reader.rows,
        reader.variables,
    )
    total = len(reader.rows)
    parts = []
    for first in range(0, total, PART_ROWS):
        rows = range(first, min(first + PART_ROWS, total))
        write = functools.partial(_write_records, objective, encoder, reader.table, rows)
        parts.append(Part(f"{first}", write))
    columns = {**objective.stored, **KEPT}
    vocab_size = reader.tokenizer.vocab_size
    if root and reader.table.is_stored and is_cacheable(objective):
        made_from = [FORMAT, *_made_from(objective, reader)]
        name = f"store-{digest_of(made_from)}"
        store = open_store(root, name, columns, parts, vocab_size)
    else:
        store = build_store(columns, parts, vocab_size)
    records = replace(
        reader,
        store=store,
        names=tuple(objective.stored),
        cut=store.counts.get("cut", 0),
        dropped=store.counts.get("dropped", 0),
        untaught=store.counts.get("untaught", 0),
        row_of=store.values("row"),
    )
    return replace(records, sizes=objective.count_tokens(records))


def _write_records(
    objective: Task, encoder: Encoder, read: Table, rows: range, writer: StoreWriter
) -> None:
    with progress.count_progress("tokenizing rows", len(rows)) as advance:
        for first, batch in _batches_of_rows(encoder.rows, rows):
            with row_errors(read, first):
                made = objective.encode(batch, encoder)
            records = []
            for row, examples in zip(range(first, first + len(batch)), made, strict=True):
                if not examples:
                    writer.count("dropped")
                for example in examples:
                    record = {"cut": 0, **example, "row": row}
                    records.append(record)
                    if record["cut"]:
                        writer.count("cut")
                    if not objective.teaches(record):
                        writer.count("untaught")
            # Those of a split of the table, which is a store of its own.
            writer.append("train", records)
            advance(len(batch))


def _batches_of_rows(
    rows: Sequence[RoleRow], chosen: range
) -> Iterator[tuple[int, Sequence[RoleRow]]]:
    """Yields rows as a task encodes them at a time, each time with the number of the first."""
    step = MAX_ROWS
    if isinstance(rows, stored.LazyRows):
        step = min(step, rows.chunk)
    for first in range(chosen.start, chosen.stop, step):
        batch = rows[first : min(first + step, chosen.stop)]
        begin = 0
        characters = 0
        for at, row in enumerate(batch):
            size = stored.count_characters(row)
            if at > begin and characters + size > MAX_CHARACTERS:
                yield first + begin, batch[begin:at]
                begin = at
                characters = 0
            characters += size
        yield first + begin, batch[begin:]


def join_neighbors(records: LabelledRecords) -> LabelledRecords:
    """Joins neighboring records into one example while they fit."""
    count = np.arange(len(records) + 1)
    plan = RowPlan(count[:-1], np.ones(len(records), np.int32), count[:-1], count)
    budgets = (records.length, records.target_length)[: records.sizes.shape[1]]
    first = share_rows(plan, records.sizes.astype(np.int64), budgets).first
    return replace(records, joined=first, sizes=np.add.reduceat(records.sizes, first[:-1]))


def _sufficient_length(objective: Task, cfg: DataConfig, reader: LabelledRecords) -> str:
    """Returns a hint with the least data.length at which one of the first rows fits."""
    rows = reader.rows[:TRIED]

    def fits(length: int) -> bool:
        sizes = objective.lengths(length, cfg.target_length)
        longer = replace(reader, length=sizes[0], target_length=sizes[1])
        return any(objective.encode(rows, longer))  # type: ignore[arg-type]

    powers = (cfg.length << power for power in range(1, DOUBLINGS))
    most = next(filter(fits, powers), None)
    if most is None:
        return ""
    least = bisect.bisect_left(range(most), True, lo=most // 2, key=fits)
    return f" to {least} or more"


def _encoded(objective: Task, reader: LabelledRecords, rows: slice) -> LabelledRecords:
    """Encodes some of the rows in memory."""
    first, stop, _ = rows.indices(len(reader.rows))
    with row_errors(reader.table, first):
        made = objective.encode(reader.rows[rows], replace(reader, first=first))
    features = list(itertools.chain.from_iterable(made))
    return replace(
        reader,
        features=features,
        row_of=np.repeat(np.arange(first, stop), list(map(len, made))),
        sizes=_sizes(objective, features),
        cut=sum(any(tokens_cut(feature)) for feature in features),
        dropped=sum(not examples for examples in made),
        untaught=sum(not objective.teaches(feature) for feature in features),
    )


def _encoded_in_files(objective: Task, reader: LabelledRecords, root: str) -> LabelledRecords:
    """Encodes rows in chunks into files, or reads these from the cache."""
    total = len(reader.rows)
    step = max(1, total)
    if _is_chunked(objective) and isinstance(reader.rows, stored.LazyRows):
        step = min(CHUNK, reader.rows.chunk)

    def write(folder: Path) -> None:
        counts = {"cut": 0, "dropped": 0, "untaught": 0}
        with (
            (folder / "row_of").open("wb") as row_of,
            (folder / "sizes").open("wb") as sizes,
            FeatureWriter(folder) as features,
            progress.count_progress("tokenizing rows", total) as advance,
        ):
            for first in range(0, total, step):
                part = _encoded(objective, reader, slice(first, first + step))
                row_of.write(part.row_of.tobytes())
                sizes.write(part.sizes.tobytes())
                features.add(part.features)
                counts["cut"] += part.cut
                counts["dropped"] += part.dropped
                counts["untaught"] += part.untaught
                advance(min(step, total - first))
        (folder / "encoded.json").write_text(json.dumps(counts))

    parts = _made_from(objective, reader)
    folder = content_cache.folder(root, f"examples-{digest_of(parts)}", write)
    features = StoredFeatures(folder)
    sizes = stored.map_numbers(folder / "sizes", np.int32)
    return replace(
        reader,
        features=features,
        row_of=stored.map_numbers(folder / "row_of", np.int64),
        sizes=sizes.reshape(len(features), -1) if len(features) else reader.sizes,
        **json.loads((folder / "encoded.json").read_text()),
    )


def _made_from(objective: Task, reader: LabelledRecords) -> list[Any]:
    """Returns what the content of a store depends on."""
    parts = [
        *reader.table.identity,
        reader.rows.names if isinstance(reader.rows, RoleRows) else "",
        reader.length,
        reader.target_length,
        reader.skeleton,
        reader.tokenizer.fingerprint,
        astuple(reader.frame),
        *made_by(objective),
    ]
    if reader.variables:
        parts.append(json.dumps(reader.variables))
    return parts


def _sizes(objective: Task, features: Sequence[Any]) -> np.ndarray:
    sizes = [objective.tokens(feature) for feature in features]
    if not sizes:
        return np.zeros((0, 1), np.int32)
    return np.asarray(sizes, np.int32)


def tokens_cut(feature: Any) -> list[int]:
    """Returns the number of tokens that a feature, or each of its parts, has lost."""
    if hasattr(feature, "cut"):
        return [feature.cut]
    return [getattr(part, "cut", 0) for part in feature]


def _is_chunked(objective: Task) -> bool:
    """Returns whether the class that defines `encode` declares that it accepts chunks of rows."""
    definer = next(cls for cls in type(objective).__mro__ if "encode" in vars(cls))
    return "chunked" in vars(definer) and bool(objective.chunked)


def is_cacheable(objective: Task) -> bool:
    """Returns whether the features of a task may be cached.

    Those of a class defined in a notebook may not, because its code can change unseen.
    """
    return all(cls.__module__ != "__main__" for cls in type(objective).__mro__)


def made_by(objective: Task) -> list[str]:
    """Returns what the features of a row depend on besides the row: the task's fields and code."""
    digest = hashlib.sha256(_code().encode())
    for cls in type(objective).__mro__:
        package, _, place = cls.__module__.partition(".")
        is_hashed = package == registry.PACKAGE and place.partition(".")[0] in SOURCES
        if package not in NO_FILE and not is_hashed:
            digest.update(Path(inspect.getfile(cls)).read_bytes())
    return [plugin_name(objective), to_config_dict(objective).to_json(), digest.hexdigest()]


@functools.cache
def _code() -> str:
    """Hashes the files of this package that the features of a row depend on."""
    package = Path(registry.__file__).parent
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def row_errors(read: Table, first: int = 0) -> Iterator[None]:
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
