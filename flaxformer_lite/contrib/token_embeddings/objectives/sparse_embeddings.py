"""Sparse embeddings (SPLADE): texts that belong together get weights on the same tokens.

References: Formal et al. 2021, "SPLADE v2" (arXiv:2109.10086); Paria et al. 2020 (arXiv:2004.05665)
for the regularizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.rules import NotNegative, OneOf, Positive
from flaxformer_lite.contrib.token_embeddings.pair_similarity import PairSimilarity
from flaxformer_lite.files.read import Json
from flaxformer_lite.nn.functions.splade import ACTIVATIONS, STRATEGIES, flops, splade
from flaxformer_lite.objectives.base import Metric, score_metric
from flaxformer_lite.objectives.rows import Tokenizer
from flaxformer_lite.objectives.sums import LossSums, sum_weighted
from flaxformer_lite.objectives.tables.sentence_embeddings import (
    batch_logits,
    one_text_per_row,
)
from flaxformer_lite.types import Arrays

Strategy = Annotated[str, OneOf(("", *STRATEGIES))]


@dataclass(frozen=True, kw_only=True)
class SparseEmbeddings(PairSimilarity):
    """Learns sparse vectors from pairs of an anchor and a positive, and negatives if there are any.

    Maximizes log P(positive | anchor), a softmax over dot products / temperature as in
    `sentence_embeddings`, with the FLOPS regularizers of anchors and of all other texts added.
    """

    pooling: Strategy = ""  # over tokens; empty: that of train.init_from, else max
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu"
    temperature: Positive = 1.0
    query_flops: NotNegative = 5e-5  # weight of the regularizer of anchors
    document_flops: NotNegative = 3e-5  # of positives and negatives

    skeletons = ("encoder",)
    head = "masked_lm"
    usual_pooling = "max"

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        return (
            score_metric("accuracy", "accuracy in the batch", form=".1%", live=True),
            Metric("query_tokens", "tokens with a weight, of a query", form=".1f", live=True),
            Metric("document_tokens", "tokens with a weight, of a document", form=".1f"),
            Metric("loss", unit="nats per text"),
        )

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        if self.kind != "pairs" or self.sizes:
            raise ConfigError(
                "objective.kind, objective.sizes: sparse_embeddings learns from pairs, and its"
                " vectors are as wide as the vocabulary; leave both out."
            )
        return super().fit_model(model, tokenizer)

    def adopt(self, facts: Mapping[str, object]) -> Self:
        """Adopts the pooling strategy of a sparse model; those of other models do not apply."""
        if facts.get("pooling") not in STRATEGIES:
            facts = {**facts, "pooling": ""}
        return super().adopt(facts)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        return cls(pooling=published.get("pooling", "max"))

    def published_fields(self) -> Json:
        fields = {"kind": "sparse", "activation": self.activation}
        return super().published_fields() | fields | {"pooling": self.pooling}

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        """Returns sparse vectors, float32 [B, C, V]."""
        flat = one_text_per_row(inputs)
        projection = model.features(**flat).projection
        vectors_BV = splade(
            projection,
            jnp.asarray(flat["attention_mask"]),
            strategy=self.pooling or "max",
            activation=self.activation,
        )
        return vectors_BV.reshape(*inputs["input_ids"].shape[:2], -1)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        weight_B = targets["weights"]
        own_B = jnp.arange(len(weight_B))
        logits_BK = batch_logits(outputs, targets["texts"], weight_B) / self.temperature
        losses_B = optax.softmax_cross_entropy_with_integer_labels(logits_BK, own_B)
        documents_NV = outputs[:, 1:].reshape(-1, outputs.shape[-1])
        is_text_BC = targets["texts"][:, 1:] >= 0
        there_N = jnp.where(is_text_BC, weight_B[:, None], 0.0).reshape(-1)
        sparse = self.query_flops * flops(outputs[:, 0], weight_B)
        sparse += self.document_flops * flops(documents_NV, there_N)
        sums = sum_weighted(
            losses_B + sparse, weight_B, accuracy=jnp.argmax(logits_BK, axis=-1) == own_B
        )
        sizes = {
            "query_tokens": (outputs[:, 0], weight_B),
            "document_tokens": (documents_NV, there_N),
        }
        for name, (vectors_NV, weight_N) in sizes.items():
            tokens_N = jnp.sum(vectors_NV > 0, axis=-1, dtype=jnp.float32)
            sums.metrics[name] = (jnp.sum(tokens_N * weight_N), weight_N.sum())
        return sums

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Returns the dot product of the first two texts."""
        dots_B = jnp.einsum(
            "BV,BV->B", outputs[:, 0], outputs[:, 1], precision=jax.lax.Precision.HIGHEST
        )
        return {"similarity": dots_B}
