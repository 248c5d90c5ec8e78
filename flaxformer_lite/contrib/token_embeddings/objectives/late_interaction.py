"""Late interaction (ColBERT): each token of a text has a vector; texts are compared by MaxSim.

References: Khattab and Zaharia 2020, "ColBERT" (arXiv:2004.12832); Santhanam et al. 2022,
"ColBERTv2" (arXiv:2112.01488).
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.rules import Positive, Size
from flaxformer_lite.contrib.token_embeddings.pair_similarity import PairSimilarity
from flaxformer_lite.files.read import Json
from flaxformer_lite.nn.functions.maxsim import maxsim
from flaxformer_lite.nn.functions.pooling import to_unit_length
from flaxformer_lite.objectives.base import Metric, score_metric
from flaxformer_lite.objectives.rows import (
    Encoded,
    Encoder,
    Example,
    Rows,
    StoredColumn,
    Tokenizer,
)
from flaxformer_lite.objectives.sums import LossSums, class_loss
from flaxformer_lite.objectives.tables.sentence_embeddings import without_positives
from flaxformer_lite.objectives.tables.task import Row
from flaxformer_lite.types import Arrays


@dataclass(frozen=True, kw_only=True)
class LateInteraction(PairSimilarity):
    """Learns vectors of tokens from pairs of an anchor and a positive, and negatives if any.

    Maximizes log P(positive | anchor), a softmax over MaxSim / temperature as in
    `sentence_embeddings`. The vectors are the encoder's last hidden states, of length one.
    """

    temperature: Positive = 1.0
    query_length: Size = 32  # tokens of an anchor; longer ones are cut
    expand: bool = True  # whether anchors are filled to query_length with the mask token
    attend: bool = False  # whether other tokens attend to these
    skip_punctuation: bool = False  # whether punctuation in other texts has no vectors

    skeletons = ("encoder",)
    stored: ClassVar = {**PairSimilarity.stored, "anchor_tokens": StoredColumn("int32", ())}
    ignores_padding = False  # tokens that fill an anchor are masked, and yet have vectors

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        return (
            score_metric("accuracy", "accuracy in the batch", form=".1%", live=True),
            Metric("loss", unit="nats per text"),
        )

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        if self.kind != "pairs" or self.sizes or self.pooling not in ("", "mean"):
            raise ConfigError(
                "objective.kind, objective.sizes, objective.pooling: late_interaction learns from"
                " pairs, and neither pools nor truncates vectors; leave them out."
            )
        return super().fit_model(model, tokenizer)

    def adopt(self, facts: Mapping[str, object]) -> Self:
        """Adopts no pooling, which makes one vector of a text."""
        return super().adopt({**facts, "pooling": ""})

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        return cls()

    def published_fields(self) -> Json:
        late: Json = {"skipped": tuple(string.punctuation) if self.skip_punctuation else ()}
        if self.expand:
            late |= {"expansion": "fixed", "expansion_length": self.query_length}
            late["attends"] = self.attend
        else:
            late["query_limit"] = self.query_length
        return {"kind": "multi_vector", "prompts": self.task_prompts, "late": late}

    def limit_of(self, task: str, length: int) -> int:
        if self.query_length > length:
            raise ConfigError(
                f"objective.query_length={self.query_length}: must be at most the length of an"
                f" example; set data.length={self.query_length} or more."
            )
        if task == "query":
            return self.query_length
        return length

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        if self.expand and encoder.tokenizer.mask_id is None:
            raise ConfigError(
                "objective.expand=True: fills queries with the mask token, which this tokenizer"
                " lacks; set it to False."
            )
        made = super().encode(rows, encoder)
        mask_id = encoder.tokenizer.mask_id
        return [[self._expand(record, mask_id) for record in of_row] for of_row in made]

    def _expand(self, record: Encoded, mask_id: int | None) -> Encoded:
        """Fills the anchor with the mask token; `anchor_tokens` are its own."""
        lengths = np.array(record["text_lengths"])
        anchor = int(lengths[0])
        if not self.expand:
            return {**record, "anchor_tokens": anchor}
        filled = np.full(self.query_length - anchor, mask_id)
        ids = np.insert(np.asarray(record["ids"]), anchor, filled)
        lengths[0] = self.query_length
        lengths[np.size(record["texts"]) :] = self.query_length  # absent negatives repeat it
        return {**record, "ids": ids, "text_lengths": lengths, "anchor_tokens": anchor}

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask and counts, [C, T] int32.

        `counts` is 1 for tokens whose vectors count. Targets are texts, [C] int32, and weights, []
        float32.
        """
        example = super().make_example(records, index, rng)
        inputs = example["inputs"]
        counts = inputs["attention_mask"].copy()
        if self.skip_punctuation:
            skipped = np.isin(inputs["input_ids"][1:], _punctuation(records.tokenizer))
            counts[1:] *= ~skipped
        if self.expand:
            filled = slice(int(records.pieces(index)[0]["anchor_tokens"]), self.query_length)
            inputs["attention_mask"][0, filled] = int(self.attend)
            inputs["attention_mask"][:, 0] = 1
        return {"inputs": {**inputs, "counts": counts}, "targets": example["targets"]}

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        """Returns vectors of length one, float32 [B, C, T, D]; those that do not count are zero."""
        shape = inputs["input_ids"].shape
        flat = {name: x.reshape(-1, shape[-1]) for name, x in inputs.items() if name != "counts"}
        hidden_BTD = model(**flat).last_hidden_state.astype(jnp.float32)
        unit_BTD = to_unit_length(hidden_BTD).reshape(*shape, -1)
        return jnp.where(inputs["counts"][..., None] != 0, unit_BTD, 0.0)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        weight_B = targets["weights"]
        document_KTD = jnp.swapaxes(outputs[:, 1:], 0, 1).reshape(-1, *outputs.shape[2:])
        scores_BK = maxsim(
            outputs[:, 0], _counting(outputs[:, 0]), document_KTD, _counting(document_KTD)
        )
        logits_BK = without_positives(scores_BK / self.temperature, targets["texts"], weight_B)
        return class_loss(logits_BK, jnp.arange(len(weight_B)), weight_B)

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        """Returns MaxSim of the first two texts."""

        def score(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
            query_1TD, document_1TD = (x_TD[None] for x_TD in pair)
            counts = _counting(query_1TD), _counting(document_1TD)
            return maxsim(query_1TD, counts[0], document_1TD, counts[1])[0, 0]

        return {"similarity": jax.lax.map(score, (outputs[:, 0], outputs[:, 1]))}


def _counting(vectors: jax.Array) -> jax.Array:
    """Returns a mask of the vectors that count, which are those that are not zero."""
    return jnp.any(vectors != 0, axis=-1)


def _punctuation(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of the tokens that are one punctuation mark."""
    marks = {mark.encode() for mark in string.punctuation}
    return [index for index, piece in enumerate(tokenizer.pieces()) if piece in marks]
