"""Tagging: one tag per word of a text, for parts of speech and named entities.

References: Devlin et al. 2019, section 5.3 (arXiv:1810.04805), for the tag on the first piece of a
word; Tjong Kim Sang and De Meulder 2003 (CoNLL-2003) for scores of entities.
"""

import collections
import dataclasses
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    ACCURACY,
    Baseline,
    Dataset,
    Metric,
    score_metric,
)
from flaxformer_lite.objectives.rows import (
    ClassNames,
    Encoded,
    Encoder,
    Example,
    Rows,
    StoredColumn,
    pad_row,
)
from flaxformer_lite.objectives.sums import LossSums, class_loss
from flaxformer_lite.objectives.tables import scores
from flaxformer_lite.objectives.tables.breakdown import (
    Breakdown,
    class_scores,
    class_table,
    confusion_matrix,
    confusion_tables,
)
from flaxformer_lite.objectives.tables.task import (
    Column,
    Labelled,
    Row,
    is_container,
    parse_list,
    text_of,
)
from flaxformer_lite.text.special_tokens import FramedSpans
from flaxformer_lite.types import Arrays, Predictions

OUTSIDE = "O"
OF_ENTITY = re.compile(r"O|[BIES]-.+")  # BIO, IOB2 and BIOES
LOSS = Metric("loss", unit="nats per word")
PLAIN = (ACCURACY, LOSS)
F1 = score_metric("f1", "F1 of entities", form=".1%")
ENTITIES = (F1, score_metric("precision", form=".1%"), score_metric("recall", form=".1%"), *PLAIN)


@dataclass(frozen=True, kw_only=True)
class Tagging(Labelled):
    """Maximizes log P(tag | text) at the first piece of each word; other pieces have weight 0.

    `tokens` and `tags` are lists of equal length, or texts split at spaces. A text that is too long
    loses its last words; they count as tagged with `usual`. Words are joined by single spaces and
    tokenized as one text: the pieces are those of transformers' `is_split_into_words`, except that
    a tokenizer that puts no space before a text (GPT-2's) reads the first word as at the beginning
    of a text, and that special tokens in a text are plain characters.
    """

    # the tag of words without a prediction; empty: O, or the most frequent one of the training rows
    usual: str = ""

    head = "token_classification"
    stored: ClassVar = {
        "ids": StoredColumn("token"),
        # of each word, the column of its first piece; -1 if it was cut off or has none
        "first": StoredColumn("int32"),
        "tag": StoredColumn("int32", like="first"),
    }
    ignores_padding = True
    columns = (
        Column("tokens", ("words", "text", "sentence")),
        Column("tags", ("ner_tags", "pos_tags", "upos", "labels", "label"), predicted=True),
    )
    sample = ({"tokens": "some words", "tags": "0 1"},)

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        if self.has_entities:
            return ENTITIES
        return PLAIN

    @property
    def has_entities(self) -> bool:
        """Whether the tags mark where entities begin and end."""
        tags = set(self.labels) - {OUTSIDE}
        return bool(tags and all(map(OF_ENTITY.fullmatch, tags)))

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        counts = self.count_labels(rows)
        if not counts:
            raise ConfigError("data.path: no row has words; there is nothing to learn.")
        labels = self.fitted_labels(counts, names.get("tags", ()), known)
        if len(labels) < 2:
            raise ConfigError(
                f"data.path: all words have the tag {labels[0]!r}; there is nothing to learn from"
                " one."
            )
        frequent, _ = max(counts, key=operator.itemgetter(1))
        usual = self.usual
        if not usual and OUTSIDE in labels:
            usual = OUTSIDE
        if not usual:
            fitted = dataclasses.replace(self, labels=labels)
            usual = labels[fitted.index(frequent, "data.path", names.get("tags", ()))]
        return dataclasses.replace(self, labels=labels, usual=usual)

    def labels_in(self, row: Row, number: int) -> list:
        return _items(row["tags"], "tags", f"row {number + 1}", (str, int))

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        words = []
        joined_words = []
        for i, row in enumerate(rows):
            items = _words(row, i)
            words.append(items)
            joined_words.append(text_of({"tokens": " ".join(items)}, "tokens", i))
        texts = encoder.spans(joined_words)
        names = encoder.classes.get("tags", ())
        made: list[list[Encoded]] = []
        for number, (row, words_of_row, text) in enumerate(zip(rows, words, texts, strict=True)):
            joined = encoder.frame.join(text, limit=encoder.length)
            tag = self._target(row, len(words_of_row), f"row {number + 1}", names)
            records: list[Encoded] = []
            if words_of_row:
                first = first_pieces(joined, words_of_row)
                records.append({"ids": joined.ids, "first": first, "tag": tag, "cut": joined.cut})
            made.append(records)
        return made

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask, for some encoders token_type_ids, [T] int32.

        Targets are labels, [T] int32, and weights, [T] float32.
        """
        record = records.pieces(index)[0]
        first = record["first"]
        labels = np.zeros(records.length, np.int32)
        weights = np.zeros(records.length, np.float32)
        kept = first >= 0
        labels[first[kept]] = record["tag"][kept]
        weights[first[kept]] = 1
        return {
            "inputs": pad_row(record["ids"], records),
            "targets": {"labels": labels, "weights": weights},
        }

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        return model(**inputs).logits.astype(jnp.float32)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        return class_loss(outputs, targets["labels"], targets["weights"])

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        return {"tags": jnp.argmax(outputs, axis=-1).astype(jnp.int32)}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        """Computes the accuracy over all words, truncated ones included, and entity scores."""
        return self._scored(*self._compared(predictions, examples, data))

    def breakdown(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[Breakdown]:
        """Returns scores per kind of entity, or per tag with a confusion matrix."""
        true, predicted = self._compared(predictions, examples, data)
        if self.has_entities:
            by_kind = scores.entity_scores(*self._names(true, predicted))
            if not by_kind:
                return []
            counts = np.asarray(list(by_kind.values())).T
            return [class_table(list(by_kind), class_scores(*counts), "entity")]
        counts_CC = confusion_matrix(
            np.concatenate(predicted), np.concatenate(true), len(self.labels)
        )
        return confusion_tables(self.labels, counts_CC, "tag")

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`, one tag per word, and `words_cut`.

        The tags are a list or a text, as the words are; words_cut is the number of words without a
        prediction.
        """
        rows: list[Json] = [{"prediction": [], "words_cut": 0} for _ in records.rows]
        for example, tags in enumerate(predictions["tags"]):
            first = records.pieces(example)[0]["first"]
            names = [self.labels[i] for i in self._predicted(first, tags)]
            number = records.table_rows[example]
            rows[number] = {"prediction": names, "words_cut": int((first < 0).sum())}
        for row, source in zip(rows, records.rows, strict=True):
            if isinstance(source["tokens"], str):
                row["prediction"] = " ".join(row["prediction"])
        return rows

    def fit_baseline(self, data: Dataset) -> Json:
        """Returns the overall most frequent tag, and the words whose most frequent tag differs."""
        seen: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        for words, tag in _tagged_words(data.splits["train"]):
            for word, number in zip(words, tag.tolist(), strict=True):
                seen[word][number] += 1
        overall = sum(seen.values(), collections.Counter()).most_common(1)[0][0]
        best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        others = {word: tag for word, tag in best.items() if tag != overall}
        return {"overall": overall, "words": others}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Tags each word with its most frequent tag in training."""
        if fitted is None:
            return None
        best = fitted["words"]
        true = []
        guess = []
        for words, tag in _tagged_words(data.splits["eval"]):
            tags = [best.get(word, fitted["overall"]) for word in words]
            true.append(tag)
            guess.append(np.asarray(tags))
        return "most frequent tag of each word", self._scored(true, guess)[self.shown[0].name]

    def show(self, records: Rows, index: int) -> str:
        record = records.pieces(index)[0]
        words = _words(records.table_row(index), index)
        pairs = []
        for word, tag in zip(words, record["tag"], strict=True):
            pairs.append(f"{word}/{self.labels[tag]}")
        return f"{' '.join(pairs):.300} ({len(record['ids'])} tokens)"

    def _predicted(self, first: np.ndarray, tags: np.ndarray) -> np.ndarray:
        """Returns the tag of each word, [W], from the tags of all columns."""
        usual = self.usual or OUTSIDE
        unpredicted = 0
        if usual in self.labels:
            unpredicted = self.labels.index(usual)
        return np.where(first >= 0, tags[first], unpredicted)

    def _scored(
        self, true: Sequence[np.ndarray], predicted: Sequence[np.ndarray]
    ) -> dict[str, float]:
        right = [tag == tags for tag, tags in zip(true, predicted, strict=True)]
        values = {"accuracy": float(np.concatenate(right).mean())}
        if self.has_entities:
            values |= scores.entities(*self._names(true, predicted))
        return values

    def _compared(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the tags of the words of examples, and those that are predicted."""
        true = []
        predicted = []
        for example, tags in zip(examples, predictions["tags"], strict=True):
            record = data.records.pieces(int(example))[0]
            true.append(record["tag"])
            predicted.append(self._predicted(record["first"], tags))
        return true, predicted

    def _names(
        self, true: Sequence[np.ndarray], predicted: Sequence[np.ndarray]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Returns the names of the predicted and of the true tags, for each example."""
        predicted_names = []
        true_names = []
        for tag, tags in zip(true, predicted, strict=True):
            predicted_names.append([self.labels[i] for i in tags])
            true_names.append([self.labels[i] for i in tag])
        return predicted_names, true_names

    def _target(self, row: Row, words: int, where: str, names: tuple[str, ...]) -> np.ndarray:
        if row["tags"] is None:  # to be predicted
            return np.zeros(words, np.int32)
        values = _items(row["tags"], "tags", where, (str, int))
        if len(values) != words:
            raise ConfigError(
                f"{where}: {words} tokens, but {len(values)} tags; there must be one for each."
            )
        return np.asarray([self.index(value, where, names) for value in values], np.int32)


def first_pieces(row: FramedSpans, words: Sequence[str]) -> np.ndarray:
    """Returns the column of each word's first piece, [W] int32; -1 for a word without pieces.

    A piece belongs to the first word that ends behind the piece's start; a lone space to the word
    after it.

    Args:
      row: the `Framed` tokens of the words, joined by single spaces.
      words: all of them, also those that were cut off.
    """
    length = np.asarray([len(word) for word in words])
    end = np.cumsum(length + 1) - 1
    columns = np.flatnonzero(row.part == 0)
    word = np.searchsorted(end, row.start[columns], side="right")
    inside = word < len(words)
    inside[inside] = (end - length)[word[inside]] <= row.end[columns[inside]]
    words_with_pieces, at = np.unique(word[inside], return_index=True)
    first = np.full(len(words), -1, np.int32)
    first[words_with_pieces] = columns[inside][at]
    return first


def _words(row: Row, number: int) -> list[str]:
    return _items(row["tokens"], "tokens", f"row {number + 1}", (str,))


def _tagged_words(records: Rows) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yields the words and tags of all records, in the order of the rows."""
    example = 0
    for number, row in enumerate(records.rows):
        words = _words(row, number)
        if words:
            yield words, records.pieces(example)[0]["tag"]
            example += 1


def _items(value: object, role: str, where: str, kinds: tuple[type, ...]) -> list:
    """Returns the items of a list, of its JSON, or of a text split at spaces."""
    items = parse_list(value)
    if items is not None and all(isinstance(item, kinds) for item in items):
        return items
    if isinstance(value, str) and (role == "tokens" or not is_container(value)):
        return value.split()
    raise ConfigError(
        f"{where}: {role}={str(value)[:80]!r} is neither a text nor a list of {role}."
    )
