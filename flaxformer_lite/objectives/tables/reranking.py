"""Reranking: a cross-encoder reads a query with a passage and scores how well it answers.

Reference: Nogueira and Cho 2019 (arXiv:1901.04085).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import expit

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
)
from flaxformer_lite.objectives.rows import Example, TableRecords, Tokenizer, TokenRow, pad_row
from flaxformer_lite.objectives.sums import LossSums, sum_weighted
from flaxformer_lite.objectives.tables import retrieval
from flaxformer_lite.objectives.tables.task import Column, Row, Task, number_of, texts_of
from flaxformer_lite.types import Arrays, Predictions


class Judged(NamedTuple):
    """A query with a passage."""

    row: TokenRow
    label: np.float32
    query: int


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """Maximizes log P(passage answers query), the sigmoid of one logit for the pair.

    Labels are 0, 1, or between.

    Metrics take the passages of each query together, as the rows have them: a first stage's
    candidates, usually.
    """

    head = "sequence_classification"
    chunked = True
    columns = (
        Column("query", ("question", "anchor", "sentence1", "text1")),
        Column("passage", ("document", "answer", "positive", "sentence2", "text2")),
        Column("label", ("score", "relevance", "target"), predicted=True),
    )
    sample = (
        {"query": "what falls?", "passage": "rain falls", "label": 1},
        {"query": "what falls?", "passage": "a day", "label": 0},
    )
    shown = (*retrieval.METRICS, Metric("loss", unit="nats per pair"))

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        return dataclasses.replace(super().fit_model(model, tokenizer), num_labels=1)

    def encode(self, rows: Sequence[Row], reader: TableRecords) -> list[list[Judged]]:
        queries = texts_of(rows, "query")
        passages = texts_of(rows, "passage")
        different = list(dict.fromkeys(queries))
        number = dict(zip(different, reader.number(different), strict=True))
        pairs = zip(reader.spans(queries), reader.spans(passages), strict=True)
        features = []
        for i, (query, passage) in enumerate(pairs):
            joined = reader.frame.join(query, passage, limit=reader.length)
            features.append([Judged(joined, _label(rows[i], i), number[queries[i]])])
        return features

    def token_counts(self, feature: Judged) -> tuple[int, ...]:
        return (len(feature.row.ids),)

    def make_example(self, records: TableRecords, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask, for some encoders token_type_ids, [T] int32.

        Targets are label and weights, [] float32.
        """
        row, label, _ = records.features[index]
        return {
            "inputs": pad_row(row, records),
            "targets": {"label": label, "weights": np.float32(1)},
        }

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        return model(**inputs).logits[:, 0].astype(jnp.float32)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        return sum_weighted(
            optax.sigmoid_binary_cross_entropy(outputs, targets["label"]), targets["weights"]
        )

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        return {"logits": outputs}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        return _scores(predictions["logits"], [data.records.features[i] for i in examples])

    def decode(self, predictions: Predictions, records: TableRecords) -> list[Json]:
        """Returns for each row `prediction`, the probability that the passage answers the query."""
        shares = expit(predictions["logits"].astype(np.float64))
        return [{"prediction": float(share)} for share in shares]

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the mean reciprocal rank by the cosine of tf-idf vectors."""
        held = data.splits["eval"]
        words = retrieval.words_of_rows(held.rows, "query", "passage")
        if words is None:
            return None
        values = _scores(retrieval.cosines(*words), held.features)
        return ("tf-idf", values["mrr"]) if values else None

    def show(self, records: TableRecords, index: int) -> str:
        return f"{super().show(records, index)!r:.300} -> {float(records.features[index].label):g}"


def _scores(value_N: np.ndarray, judged: Sequence[Judged]) -> dict[str, float]:
    """Computes retrieval scores from the rank of each query's first relevant passage.

    Queries without one are left out; ties count against the passage.
    """
    label_N = np.asarray([one.label for one in judged])
    query_N = np.asarray([one.query for one in judged])
    ranks = []
    for query in np.unique(query_N[label_N > 0.5]):
        of_query = query_N == query
        right = value_N[of_query & (label_N > 0.5)]
        wrong = value_N[of_query & (label_N <= 0.5)]
        ranks.append(1 + np.sum(wrong >= right.max()))
    if not ranks:
        return {}
    return retrieval.scores(np.asarray(ranks))


def _label(row: Row, number: int) -> np.float32:
    """Returns the label of a row; 0 if it is to be predicted."""
    if row["label"] is None:
        return np.float32(0)
    value = number_of(row, "label", number)
    if not 0 <= value <= 1:
        raise ConfigError(f"row {number + 1}: label={value:g} must be from 0 to 1.")
    return value
