"""The base of objectives on labelled rows: columns, labels, and predictions per row."""

import abc
import collections
import contextlib
import dataclasses
import functools
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig, check_family
from flaxformer_lite.config.rules import MAX_FLOAT32
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.rows import (
    ClassNames,
    Encoded,
    Encoder,
    Rows,
    StoredColumn,
    Tokenizer,
)
from flaxformer_lite.text.special_tokens import Framed
from flaxformer_lite.types import Predictions

Row = Mapping[str, Any]  # role -> value
# What stands for no value in pandas.read_csv, which is what spreadsheets and databases write.
NULLS = (
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
)
WHOLE = re.compile(r"-?\d{1,4000}")  # a number as the name of a class; Python reads no longer ones
POINT_ZERO = re.compile(r"(-?\d+)\.0+")  # a whole number as pandas writes it beside missing ones
# A list or an object that a text is, as JSON or as Python and numpy print it.
CONTAINER = re.compile(r"\s*(\[\s*([\"'\d.\[{-].*)?\]|\{\s*([\"'].*)?\})\s*", re.DOTALL)
NUMBER = re.compile(r"\d{1,9}")  # of a class
MOST_LABELS = 8  # most labels that a message names
ALIKE = "differ only in case, spaces, Unicode form or a final .0"
FOLD = "--config.objective.fold_labels=True makes them one"


class Column(NamedTuple):
    """A column that a task reads.

    Attributes:
      role: its name in the task; `data.columns="role=name"` says which column it is.
      names: what it is called in other people's tables, looked for in this order.
      optional: whether a table may lack it; its value is then None.
      predicted: whether new data may lack it, because the task predicts it.
      later: whether earlier versions did not read it; a table without it is split as then.
    """

    role: str
    names: tuple[str, ...] = ()
    optional: bool = False
    predicted: bool = False
    later: bool = False


@dataclass(frozen=True, kw_only=True)
class Task(Objective):
    """Base class of objectives that learn from the rows of a table.

    Attributes:
      columns: the columns to read.
      sample: rows for compiling without data.
      stored: the columns of what `encode` returns, by name. A task that fits itself to the data may
        have it as a property. The tokens of an example are those of `ids`, or of the longest of its
        texts, which `text_lengths` counts, or else of each other column of tokens, a side of the
        model each. A record with `answers` that are all 0 teaches nothing.
      packed: whether neighboring training rows share an example while they fit.
      ignores_padding: whether what the model computes of an example is the same without its
        padding, so that batches are computed without it (data/padding.py). Each row of the inputs
        is then a text, padded on the right: that of `ids`, or those that `text_lengths` counts.
    """

    missing: tuple[str, ...] = NULLS  # texts and labels that count as missing, beside empty ones

    columns: ClassVar[tuple[Column, ...]] = ()
    stored: ClassVar[Mapping[str, StoredColumn]] = {}
    ignores_padding: ClassVar[bool] = False
    packed = False  # not annotated, so that it is a field only where a task has it as one
    sample: ClassVar[tuple[Row, ...]] = ()
    new_head = True

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        """Returns the task fitted to the training rows, for example with their labels.

        Args:
          rows: the training rows.
          names: names of classes by role, where the table has them.
          known: labels of the weights to start from, kept with their order if the rows have no
            others.
        """
        return self

    def is_missing(self, role: str, value: object) -> bool:
        """Returns whether a value counts as missing; rows without a text or label are rejected."""
        if role == "label" and isinstance(value, str):
            return is_blank(value, self.missing)
        return value is None or (isinstance(value, float) and math.isnan(value))

    def doubts(self, rows: Iterable[Row]) -> list[str]:
        """Describes what else may be wrong with the rows of a table that is refused."""
        return []

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Returns the model with the fields that its head takes from the task.

        A decoder's classifier skips padding, so it needs the padding id. That of an encoder-decoder
        reads the end token, which must be one that the tokenizer puts after a text.
        """
        if model.head != "sequence_classification":
            return model
        if model.skeleton == "decoder" and model.pad_token_id is None:
            return dataclasses.replace(model, pad_token_id=tokenizer.pad_id)
        if model.skeleton != "encoder_decoder":
            return model
        after = tokenizer.frame(model.skeleton).after
        if not after:
            raise ConfigError(
                "data.tokenizer: puts no token after a text, where the classifier of a"
                f" {model.family} reads; add its end token to the template of tokenizer.json."
            )
        end = check_family(model)(model).end_token
        if end in after:
            return model
        return dataclasses.replace(model, eos_token_id=after[-1])

    @abc.abstractmethod
    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        """Tokenizes rows; returns for each row a list of records, with the columns of `stored`.

        A row may have no record, or several. A record may also have `cut`, the number of tokens
        that were too many. Tables are encoded 1,024 rows at a time, or fewer with more than two
        million characters; what depends on all rows is for `fit`.

        Args:
          rows: values by role; a `predicted` column's may be None.
          encoder: has the tokenizer, `token_ids(texts)`, `frame`, `length` and `target_length`
            (data/encoding.py).

        Raises:
          ConfigError: a value cannot be used; names the row.
        """

    def remarks(self, records: Mapping[str, Rows]) -> list[str]:
        """Describes suspicious values in both splits, such as one label in two spellings."""
        return []

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Turns the predictions for all examples, in order, into named values for each row."""
        raise ConfigError(f"{type(self).__name__}: has nothing to predict for a row.")

    def show(self, records: Rows, index: int) -> str:
        """Describes an example: its decoded tokens, and its target."""
        record = records.pieces(index)[0]
        row = Framed(record["ids"], int(record.get("second", len(record["ids"]))), 0)
        texts = records.frame.texts_of(row)
        return " | ".join(records.tokenizer.decode(ids) for ids in texts if ids.size)


@dataclass(frozen=True, kw_only=True)
class Labelled(Task):
    """Base class of tasks whose rows have labels of a closed set.

    Attributes:
      labels: their names, in the order of the logits; empty: the training rows' labels.
    """

    labels: tuple[str, ...] = ()
    fold_labels: bool = False  # labels that differ only in case, spaces, Unicode form or .0 are one

    adopts = ("labels",)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        return cls(labels=labels)

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        return dataclasses.replace(
            super().fit_model(model, tokenizer), num_labels=max(1, len(self.labels))
        )

    def published_fields(self) -> Json:
        if not self.labels:
            return {}
        return {"labels": self.labels}

    def is_missing(self, role: str, value: object) -> bool:
        return super().is_missing(role, value) and value not in self.labels

    def labels_in(self, row: Row, number: int) -> list:
        """Returns the labels of a row as they stand in the table.

        Raises:
          ConfigError: it has none, or they cannot be read; names row `number` + 1.
        """
        raise NotImplementedError

    def count_labels(self, rows: Sequence[Row]) -> list[tuple[Any, int]]:
        """Returns the different labels of rows, in their order, with how often each occurs."""
        counts: collections.Counter[tuple[type, Any]] = collections.Counter()
        for i, row in enumerate(rows):
            for value in self.labels_in(row, i):
                name = value if isinstance(value, (str, int, float)) else str(value)
                # With its type, as 1, 1.0 and True are the same key.
                counts[type(value), name] += 1
        return [(value, count) for (_, value), count in counts.items()]

    def fitted_labels(
        self,
        counts: Sequence[tuple[Any, int]],
        names: tuple[str, ...],
        known: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Returns the labels in order: the config's, or the training rows'.

        Args:
          counts: of the training rows, from `count_labels`.
          names, known: as in `names_of`.
        """
        if self.labels:
            return self.labels
        values = [value for value, _ in counts]
        if not self.fold_labels or (names and all(isinstance(value, int) for value in values)):
            return names_of(values, names, known)
        usual = {fold(label): label for label in known}
        for value, _ in sorted(counts, key=lambda pair: -pair[1]):
            usual.setdefault(fold(str(value)), str(value))
        spelled = {usual[fold(str(value))] for value in values}
        return names_of(sorted(spelled), names, known)

    def index(self, value: object, where: str, names: tuple[str, ...] = ()) -> int:
        """Returns the index of a label.

        Args:
          value: a label, or its number.
          where: the row to name in errors.
          names: of the classes that the table numbers, in its order.

        Raises:
          ConfigError: it is not among the labels of the training rows.
        """
        is_number = NUMBER.fullmatch(str(value)) and str(value) not in self.labels
        if is_number and set(names) <= set(self.labels) and int(str(value)) < len(names):
            value = names[int(str(value))]
        if self.fold_labels and str(value) not in self.labels:
            place = _folded(self.labels).get(fold(str(value)))
            if place is not None:
                return place
        return index_of(value, self.labels, where)

    def doubts(self, rows: Iterable[Row]) -> list[str]:
        found: collections.Counter[str] = collections.Counter()
        unknown: collections.Counter[str] = collections.Counter()
        for row in rows:
            with contextlib.suppress(ConfigError):
                for label in self.labels_in(row, 0):
                    found[str(label)] += 1
                    if self.labels and not self._is_known(label):
                        unknown[str(label)] += 1
        doubts = []
        if unknown:
            named = [
                f"{quote_value(n)} ({count:,})" for n, count in unknown.most_common(MOST_LABELS)
            ]
            if len(unknown) > MOST_LABELS:
                named.append("...")
            doubts.append(f"{len(unknown):,} labels are in no training row: {', '.join(named)}.")
        groups = self._alike({*self.labels, *found})
        if groups:
            doubts.append(f"There are also labels that {ALIKE}: {'; '.join(groups)}; {FOLD}.")
        return doubts

    def _is_known(self, label: object) -> bool:
        try:
            self.index(label, "")
        except ConfigError:
            return False
        return True

    def remarks(self, records: Mapping[str, Rows]) -> list[str]:
        return [
            f"labels that {ALIKE}: {names}; correct the rows if they are the same label, or {FOLD}"
            for names in self._alike(self.labels)
        ]

    def _alike(self, labels: Iterable[str]) -> list[str]:
        """Returns the groups of labels that `fold_labels` would make one, as text."""
        if self.fold_labels:
            return []
        alike: dict[str, list[str]] = {}
        for label in sorted(labels):
            alike.setdefault(fold(label), []).append(repr(label))
        groups = [", ".join(names) for names in alike.values() if len(names) > 1]
        if len(groups) > MOST_LABELS:
            groups[MOST_LABELS:] = [f"and {len(groups) - MOST_LABELS} more such groups"]
        return groups


def is_blank(text: str, missing: Sequence[str]) -> bool:
    """Returns whether a text is empty, or one of the words that stand for a missing value."""
    stripped = text.strip()
    return not stripped or stripped in missing


def fold(label: str) -> str:
    """Returns what labels that `fold_labels` makes one have in common."""
    plain = " ".join(unicodedata.normalize("NFC", label).split()).casefold()
    number = POINT_ZERO.fullmatch(plain)
    if number:
        return number[1]
    return plain


@functools.cache
def _folded(labels: tuple[str, ...]) -> dict[str, int]:
    # In reverse, so that of labels that fold alike the first one counts.
    return {fold(label): index for index, label in reversed(list(enumerate(labels)))}


def names_of(
    values: Sequence[object], names: tuple[str, ...] = (), known: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Returns the labels of a task, in order.

    They are those of the starting weights if these cover the values, those that the table names, or
    the sorted values.
    """
    if names and all(isinstance(value, int) for value in values):
        return known if set(known) == set(names) else names
    labels = {str(value) for value in values}
    if labels <= set(known):
        return known
    are_integers = all(map(WHOLE.fullmatch, labels))
    # As numbers, so that 10 comes after 9.
    return tuple(sorted(labels, key=int if are_integers else None))


def index_of(value: object, labels: tuple[str, ...], where: str) -> int:
    """Returns the index of a label.

    Raises:
      ConfigError: it is not among the labels of the training rows.
    """
    if str(value) in labels:
        return labels.index(str(value))
    numbered = any(map(WHOLE.fullmatch, labels))  # then a number is a name
    if not numbered and NUMBER.fullmatch(str(value)) and int(str(value)) < len(labels):
        # where the table or the weights name the classes; csv has numbers as texts
        return int(str(value))
    for label in labels:
        if fold(label) == fold(str(value)):
            raise ConfigError(
                f"{where}: no training row has the label {str(value)[:80]!r}, and {label[:80]!r},"
                f" which some have, and it {ALIKE}; correct it, or {FOLD}."
            )
    more = f", ... ({len(labels)} in all)" if len(labels) > MOST_LABELS else ""
    raise ConfigError(
        f"{where}: no training row has the label {str(value)[:80]!r}, only"
        f" {', '.join(labels[:MOST_LABELS])}{more}; correct it, add rows that have it (a single one"
        " may be held out), or name all labels in objective.labels."
    )


def is_container(value: object) -> bool:
    """Returns whether a value is a list or an object, or the text of one."""
    if isinstance(value, str):
        return CONTAINER.fullmatch(value) is not None
    return isinstance(value, (list, tuple, dict))


def parse_list(value: object) -> list | None:
    """Returns the items of a list, or of a text that is a list of JSON; None for others."""
    if isinstance(value, str) and is_container(value):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, (list, tuple)):
        return list(value)
    return None


def text_of(row: Row, role: str, number: int) -> str:
    """Returns the text of a row.

    Raises:
      ConfigError: it has none.
    """
    value = row[role]
    if not isinstance(value, str):
        raise ConfigError(
            f"row {number + 1}: {role}={quote_value(value)} is not a text; correct or remove the"
            " row."
        )
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise ConfigError(f"row {number + 1}: {role} is not valid Unicode (a lone surrogate).")
    return value


def texts_of(rows: Sequence[Row], role: str) -> list[str]:
    """Returns the text of each row; see `text_of`."""
    return [text_of(row, role, number) for number, row in enumerate(rows)]


def number_of(row: Row, role: str, number: int) -> np.float32:
    """Returns the numeric value of a row.

    Raises:
      ConfigError: it has none, or one that float32 does not hold.
    """
    try:
        value = float(row[role])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    # Not `>`, which would let NaN pass.
    if not abs(value) <= MAX_FLOAT32:
        raise ConfigError(
            f"row {number + 1}: {role}={str(row[role])[:40]!r} is not a number of float32;"
            " correct it."
        )
    return np.float32(value)
