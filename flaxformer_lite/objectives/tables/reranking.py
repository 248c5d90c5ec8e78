"""Reranking: a cross-encoder reads a query with a passage and scores how well it answers.

Reference: Nogueira and Cho 2019 (arXiv:1901.04085).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.rules import OneOf
from flaxformer_lite.files.read import Json
from flaxformer_lite.nn.functions.activations import TORCH_ACTIVATIONS
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
    score_metric,
)
from flaxformer_lite.objectives.rows import (
    Encoded,
    Encoder,
    Example,
    Rows,
    StoredColumn,
    Tokenizer,
    pad_row,
)
from flaxformer_lite.objectives.sums import LossSums, sum_weighted
from flaxformer_lite.objectives.tables import retrieval
from flaxformer_lite.objectives.tables.task import Column, Row, Task, number_of, texts_of
from flaxformer_lite.types import Arrays, Predictions

Activation = Annotated[str, OneOf(("", *TORCH_ACTIVATIONS))]
MAX_RANKED_PASSAGES = 10  # passages of a query that mrr_10 and ndcg_10 read


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """Maximizes log P(passage answers query), the sigmoid of one logit for the pair.

    Labels are 0, 1, or between. What is predicted is `activation` of the logit.

    Metrics take the passages of each query together, as the rows have them: a first stage's
    candidates, usually.
    """

    # by its name in torch.nn; empty: train.init_from's, else Sigmoid
    activation: Activation = ""

    head = "sequence_classification"
    stored: ClassVar = {
        "ids": StoredColumn("token"),
        "second": StoredColumn("int32", ()),
        "label": StoredColumn("float32", ()),
        "query": StoredColumn("key", ()),
    }
    ignores_padding = True
    adopts = ("activation",)
    columns = (
        Column("query", ("question", "anchor", "sentence1", "text1")),
        Column("passage", ("document", "answer", "positive", "sentence2", "text2")),
        Column("label", ("score", "relevance", "target"), predicted=True),
    )
    sample = (
        {"query": "what falls?", "passage": "rain falls", "label": 1},
        {"query": "what falls?", "passage": "a day", "label": 0},
    )
    shown = (
        *retrieval.METRICS,
        score_metric("mrr_10", "mean reciprocal rank at 10"),
        score_metric("ndcg_10", "nDCG at 10"),
        Metric("loss", unit="nats per pair"),
    )

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        return cls(activation=published["activation"])

    def published_fields(self) -> Json:
        """Returns what sentence-transformers' CrossEncoder reads."""
        return {"sentence_transformers": {"activation_fn": f"torch.nn.{self._activation}"}}

    @property
    def _activation(self) -> str:
        return self.activation or "Sigmoid"

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        return dataclasses.replace(super().fit_model(model, tokenizer), num_labels=1)

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        queries = texts_of(rows, "query")
        passages = texts_of(rows, "passage")
        keys = encoder.keys(queries)
        pairs = zip(encoder.token_ids(queries), encoder.token_ids(passages), strict=True)
        records: list[list[Encoded]] = []
        for i, (query, passage) in enumerate(pairs):
            joined = encoder.frame.join_ids(query, passage, limit=encoder.length)
            records.append([{**joined._asdict(), "label": _label(rows[i], i), "query": keys[i]}])
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask, for some encoders token_type_ids, [T] int32.

        Targets are label and weights, [] float32.
        """
        record = records.pieces(index)[0]
        return {
            "inputs": pad_row(record["ids"], records, record["second"]),
            "targets": {"label": record["label"], "weights": np.ones((), np.float32)},
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
        records = data.records
        judged = (records.column(name)[examples] for name in ("label", "query"))
        return _scores(predictions["logits"], *judged)

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`; a sigmoid is the probability of an answer."""
        scores = np.asarray(TORCH_ACTIVATIONS[self._activation](predictions["logits"]))
        return [{"prediction": float(score)} for score in scores]

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the mean reciprocal rank by the cosine of tf-idf vectors."""
        held = data.splits["eval"]
        words = retrieval.words_of_rows(held.rows, "query", "passage")
        if words is None:
            return None
        values = _scores(retrieval.cosines(*words), held.column("label"), held.column("query"))
        return ("tf-idf", values["mrr"]) if values else None

    def show(self, records: Rows, index: int) -> str:
        label = float(records.column("label")[index])
        return f"{super().show(records, index)!r:.300} -> {label:g}"


def _scores(value_N: np.ndarray, label_N: np.ndarray, query_N: np.ndarray) -> dict[str, float]:
    """Computes retrieval scores from the rank of each query's first relevant passage.

    Queries without one are left out; ties count against the passage.
    """
    is_right_N = label_N > 0.5
    first_ranks = []
    gains = []
    for query in np.unique(query_N[is_right_N]):
        of_query = query_N == query
        # the best first; of equal ones, those that are wrong
        order = np.lexsort((is_right_N[of_query], -value_N[of_query]))
        ranks = 1 + np.flatnonzero(is_right_N[of_query][order])
        first_ranks.append(ranks[0])
        ideal = range(1, 1 + min(len(ranks), MAX_RANKED_PASSAGES))
        gain = retrieval.sum_discounted(ranks[ranks <= MAX_RANKED_PASSAGES])
        gains.append(gain / retrieval.sum_discounted(ideal))
    if not gains:
        return {}
    first_N = np.asarray(first_ranks)
    seen_N = np.where(first_N <= MAX_RANKED_PASSAGES, 1 / first_N, 0.0)
    cut = {"mrr_10": float(seen_N.mean()), "ndcg_10": float(np.mean(gains))}
    return retrieval.scores(first_N) | cut


def _label(row: Row, number: int) -> np.float32:
    """Returns the label of a row; 0 if it is to be predicted."""
    if row["label"] is None:
        return np.float32(0)
    value = number_of(row, "label", number)
    if not 0 <= value <= 1:
        raise ConfigError(f"row {number + 1}: label={value:g} must be from 0 to 1.")
    return value
