"""Sentence embeddings: texts that belong together get vectors of high cosine similarity.

References: Reimers and Gurevych 2019, Sentence-BERT (arXiv:1908.10084); Henderson et al. 2017,
section 4.4 (arXiv:1705.00652), for negatives of the batch; Kusupati et al. 2022 (arXiv:2205.13147)
for Matryoshka sizes; Su 2022, CoSENT, for scores, as sentence-transformers computes it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.config import ConfigError, ModelConfig, choices
from flaxformer_lite.config.rules import Count, OneOf, Positive, Size
from flaxformer_lite.files.read import Json
from flaxformer_lite.nn.functions.pooling import mean_pool, pool, truncate_vectors
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
    score_metric,
)
from flaxformer_lite.objectives.rows import (
    PACKING,
    ClassNames,
    Encoded,
    Encoder,
    Example,
    Record,
    Rows,
    StoredColumn,
    Tokenizer,
    pad_row,
)
from flaxformer_lite.objectives.sums import TOKENS, LossSums, sum_weighted
from flaxformer_lite.objectives.tables import retrieval
from flaxformer_lite.objectives.tables.scores import compute_correlations
from flaxformer_lite.objectives.tables.task import (
    Column,
    Row,
    Task,
    number_of,
    parse_list,
    text_of,
)
from flaxformer_lite.types import Arrays, Predictions

Kind = Annotated[str, OneOf(("pairs", "scores"))]
Pooling = Annotated[str, OneOf(("", *choices.POOLINGS))]
EXCLUDED_LOGIT = -1e30  # the logit of what does not count
SPEARMAN = score_metric("spearman", "Spearman correlation", live=True)
PEARSON = score_metric("pearson", "Pearson correlation")
ACCURACY = score_metric("accuracy", "accuracy in the batch", form=".1%")


@dataclass(frozen=True, kw_only=True)
class SentenceEmbeddings(Task):
    """Learns sentence vectors from pairs of an anchor and a positive, or of two texts and a score.

    `kind="pairs"` maximizes log P(positive | anchor), a softmax over cosine / temperature of the
    positives and negatives of all rows of the batch (of the microbatch with `train.accumulate`, and
    of one device in the modes shard_map and pmap, unless `whole_batch` is set). The same text, and
    other positives of the same anchor, are no negatives. `kind="scores"` wants pairs of higher
    score to be more alike: log(1 + sum exp((cosine_j - cosine_i) / temperature)) over score_i >
    score_j.
    """

    kind: Kind = "pairs"
    # how token vectors become one; empty: as train.init_from has it, else mean
    pooling: Pooling = ""
    temperature: Positive = 0.05
    negatives: Count = 0  # of a row; 0: the most that a training row has
    # widths that vectors may be cut to; the loss is the sum over these and the whole
    sizes: tuple[Size, ...] = ()
    # whether rows of all microbatches and devices are compared, at the price of a second forward
    # pass (GradCache)
    whole_batch: bool = False
    # before each anchor, and before all other texts: a text, or a name in `prompts`
    query_prompt: str = ""
    document_prompt: str = ""
    # names and texts; empty: train.init_from's
    prompts: tuple[tuple[str, str], ...] = ()

    skeletons: ClassVar[tuple[str, ...]] = (
        "encoder",
        "encoder_decoder",
        "decoder",
        "embedding",
    )
    head: ClassVar[str | Mapping[str, str]] = {
        "encoder": "none",
        "encoder_decoder": "encoder",
        "decoder": "none",
        "embedding": "none",
    }
    stored: ClassVar = {
        "ids": StoredColumn("token"),  # of the anchor, the positive and the negatives
        # of these, and of the anchor again in place of each negative that the row lacks
        "text_lengths": StoredColumn("int32"),
        "texts": StoredColumn("key"),  # the same for the same text
        "score": StoredColumn("float32", ()),  # how alike the first two are; NaN if unknown
    }
    ignores_padding = True
    adopts = ("pooling", "prompts")
    usual_pooling: ClassVar[str] = "mean"
    columns = (
        Column("anchor", ("query", "question", "sentence1", "text1", "premise")),
        Column("positive", ("answer", "passage", "document", "sentence2", "text2", "hypothesis")),
        Column("negatives", ("negative", "hard_negative", "negative_passages"), optional=True),
        Column("score", ("similarity", "similarity_score"), optional=True, predicted=True),
    )
    sample = (
        {"anchor": "a question", "positive": "the answer", "negatives": ["another"], "score": None},
        {"anchor": "rain", "positive": "water that falls", "negatives": None, "score": None},
    )

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        loss = Metric("loss", unit="nats per text")
        cut = []
        for size in self.sizes:
            cut.append(score_metric(f"mrr_{size}", f"mean reciprocal rank at width {size}"))
        alike = (SPEARMAN, PEARSON)
        if self.kind == "scores":
            return (*alike, loss)
        return (*retrieval.METRICS, *cut, *alike, ACCURACY, loss)

    @property
    def compares_rows(self) -> bool:
        return self.whole_batch

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        scored = [not math.isnan(_score(row, i)) for i, row in enumerate(rows)]
        if self.kind == "pairs" and any(scored):
            raise ConfigError(
                "some rows have a score, and kind=pairs takes all for alike; learn from it with"
                " --config.objective.kind=scores, or leave the column out."
            )
        if self.kind == "scores" and not all(scored):
            raise ConfigError(
                f"row {scored.index(False) + 1} has no score, which objective.kind=scores learns"
                " from; add it, or set objective.kind=pairs."
            )
        most = max(len(_negatives(row, i)) for i, row in enumerate(rows))
        return dataclasses.replace(
            self, negatives=self.negatives or most, pooling=self.pooling or self.usual_pooling
        )

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        if not model.layers:
            raise ConfigError(
                f"model.family={model.family!r}: static embeddings are evaluated here, but trained"
                " by sentence-transformers; choose a model with layers."
            )
        wide = [size for size in self.sizes if size >= model.d_model]
        if wide:
            raise ConfigError(
                f"objective.sizes: {wide[0]} must be less than the vectors' width, {model.d_model}."
            )
        return super().fit_model(model, tokenizer)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        query, document = published.get("prompts", ("", ""))
        return cls(
            pooling=published.get("pooling", "mean"), query_prompt=query, document_prompt=document
        )

    def published_fields(self) -> Json:
        return {"pooling": self.pooling or "mean", "prompts": self.task_prompts}

    @property
    def task_prompts(self) -> dict[str, str]:
        """The prompts before a `query`, which anchors are, and before a `document`."""
        known = dict(self.prompts)
        return {
            "query": known.get(self.query_prompt, self.query_prompt),
            "document": known.get(self.document_prompt, self.document_prompt),
        }

    def limit_of(self, task: str, length: int) -> int:
        """Returns the most tokens of a query or document; `length` is an example's."""
        return length

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        texts_of_rows = [texts_of_row(row, i)[: 2 + self.negatives] for i, row in enumerate(rows)]
        prompts = self.task_prompts
        keys: dict[tuple[str, str], None] = {}  # in the order of the texts
        for texts in texts_of_rows:
            for position, text in enumerate(texts):
                keys["query" if position == 0 else "document", text] = None
        all_ids = encoder.token_ids([prompts[task] + text for task, text in keys])
        framed_of = {}
        for (task, text), ids in zip(keys, all_ids, strict=True):
            limit = self.limit_of(task, encoder.length)
            framed_of[task, text] = encoder.frame.join_ids(ids, limit=limit)
        made: list[list[Encoded]] = []
        for i, (row, texts) in enumerate(zip(rows, texts_of_rows, strict=True)):
            framed = [framed_of["query", texts[0]]]
            framed += [framed_of["document", text] for text in texts[1:]]
            lengths = [len(each.ids) for each in framed]
            absent = 2 + self.negatives - len(texts)
            record: Encoded = {
                "ids": np.concatenate([each.ids for each in framed]),
                "text_lengths": np.asarray(lengths + lengths[:1] * absent),
                "texts": encoder.keys(texts),
                "score": _score(row, i),
                "cut": sum(each.cut for each in framed),
            }
            made.append([record])
        return made

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids and attention_mask, [C, T] int32.

        Targets are texts, [C] int32, and weights, [] float32; with `scores` also the score.
        """
        record = records.pieces(index)[0]
        texts = _texts_of(record)
        numbers = np.full(2 + self.negatives, -1, np.int32)
        numbers[: len(texts)] = record["texts"]
        texts += texts[:1] * (len(numbers) - len(texts))
        rows = [pad_row(ids, records) for ids in texts]
        inputs = {}
        for name in ("input_ids", "attention_mask"):
            inputs[name] = np.stack([row[name] for row in rows])
        # An empty text sees its first padding token, as a softmax over nothing has no value.
        inputs["attention_mask"][:, 0] = 1
        targets = {"texts": numbers, "weights": np.ones((), np.float32)}
        if self.kind == "scores":
            targets["score"] = np.nan_to_num(record["score"])
        return {"inputs": inputs, "targets": targets}

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        """Returns vectors of unit length, float32 [B, C, D]."""
        flat = one_text_per_row(inputs)
        hidden_BTD = model(**flat).last_hidden_state
        mask_BT = jnp.asarray(flat["attention_mask"])
        if self.pooling in ("", "mean"):  # without the division, which changes the last bits
            pooled_BD = mean_pool(hidden_BTD, mask_BT)
        else:
            pooled_BD = pool(self.pooling, hidden_BTD, mask_BT)
        return pooled_BD.reshape(*inputs["input_ids"].shape[:2], -1)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        weight_B = targets["weights"]
        widths = [outputs, *(truncate_vectors(outputs, size) for size in self.sizes)]
        if self.kind == "scores":
            alike = []
            for z_BCD in widths:
                cosine_B = jnp.sum(z_BCD[:, 0] * z_BCD[:, 1], axis=-1)
                alike.append(cosine_B / self.temperature)
            count = weight_B.sum()
            total = sum(order_loss(cosine_B, targets["score"], weight_B) for cosine_B in alike)
            return LossSums({TOKENS: total * count}, {TOKENS: count}, {})
        logits = []
        for z_BCD in widths:
            logits_BK = batch_logits(z_BCD, targets["texts"], weight_B)
            logits.append(logits_BK / self.temperature)
        own_B = jnp.arange(len(weight_B))
        losses = []
        for logits_BK in logits:
            losses.append(optax.softmax_cross_entropy_with_integer_labels(logits_BK, own_B))
        total_B = sum(losses[1:], losses[0])
        is_right_B = jnp.argmax(logits[0], axis=-1) == own_B
        return sum_weighted(total_B, weight_B, accuracy=is_right_B)

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        return {"vectors": outputs[:, :2]}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        records = data.records
        vectors_N2D = predictions["vectors"]
        given = _known(records.column("score")[examples])
        if given is not None:
            return compute_correlations(_cosines(vectors_N2D), given)
        pairs_N2 = _pairs_of(records)[examples]
        values = retrieval.scores(retrieval.ranks(vectors_N2D[:, 0], vectors_N2D[:, 1], pairs_N2))
        for size in self.sizes:
            short = np.asarray(truncate_vectors(jnp.asarray(vectors_N2D), size))
            ranks = retrieval.ranks(short[:, 0], short[:, 1], pairs_N2)
            values[f"mrr_{size}"] = retrieval.scores(ranks)["mrr"]
        return values

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row the cosine `similarity` of its first two texts."""
        return [{"similarity": float(value)} for value in _cosines(predictions["vectors"])]

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the score of tf-idf cosines on the held-out rows."""
        held = data.splits["eval"]
        words = retrieval.words_of_rows(held.rows, "anchor", "positive")
        if words is None:
            return None
        given = _known(held.column("score"))
        if given is not None:
            values = compute_correlations(retrieval.cosines(*words), given)
            return ("tf-idf", values["spearman"]) if values else None
        return "tf-idf", retrieval.scores(retrieval.ranks(*words, _pairs_of(held)))["mrr"]

    def show(self, records: Rows, index: int) -> str:
        record = records.pieces(index)[0]
        texts = [repr(records.tokenizer.decode(ids))[:150] for ids in _texts_of(record)]
        words = " | ".join(texts)
        if math.isnan(record["score"]):
            return words
        return f"{words} -> {float(record['score']):g}"


def one_text_per_row(inputs: Arrays) -> dict[str, jax.Array]:
    """Reshapes inputs [B, C, T] to [B C, T]; packed ones stay as they are."""
    flat = {}
    for name, x in inputs.items():
        if name != PACKING:
            x = x.reshape(-1, x.shape[-1])
        flat[name] = x
    return flat


def _texts_of(record: Record) -> list[np.ndarray]:
    """Returns the ids of each text that a row has."""
    lengths = record["text_lengths"][: len(record["texts"])]
    return np.split(record["ids"], np.cumsum(lengths)[:-1])


def _pairs_of(records: Rows) -> np.ndarray:
    """Returns the numbers of the first two texts of each row, [N, 2] int32."""
    lengths = records.lengths("texts")
    first = np.cumsum(lengths) - lengths
    return records.column("texts")[first[:, None] + np.arange(2)]


def batch_logits(z_BCD: jax.Array, texts_BC: jax.Array, weight_B: jax.Array) -> jax.Array:
    """Computes anchor . text for the positives of all rows, then all negatives, [B, (C - 1) B].

    The row's own positive is column b of row b.

    Texts that are no negatives have a logit without probability; see `without_positives`.
    """
    text_KD = jnp.swapaxes(z_BCD[:, 1:], 0, 1).reshape(-1, z_BCD.shape[-1])
    logits_BK = jnp.einsum("BD,KD->BK", z_BCD[:, 0], text_KD, precision=jax.lax.Precision.HIGHEST)
    return without_positives(logits_BK, texts_BC, weight_B)


def without_positives(logits_BK: jax.Array, texts_BC: jax.Array, weight_B: jax.Array) -> jax.Array:
    """Excludes the logits of texts that are no negatives, [B, (C - 1) B].

    These are padding, the anchor's own text, and the positives of all rows with the same anchor.
    """
    rows, choices = texts_BC.shape
    text_1K = texts_BC[:, 1:].T.reshape(1, -1)
    column_1K = jnp.arange(rows * (choices - 1))[None]
    of_1K = column_1K % rows  # the row of each text
    same_BB = texts_BC[:, :1] == texts_BC[:, 0][None]
    equal_BK = texts_BC[:, 1:2] == text_1K
    # of any row with this anchor
    right_BK = (same_BB.astype(jnp.float32) @ equal_BK.astype(jnp.float32)) > 0
    other_BK = ~right_BK & (text_1K != texts_BC[:, :1]) & ((text_1K >= 0) & (weight_B[of_1K] > 0))
    own_BK = column_1K == jnp.arange(rows)[:, None]
    return jnp.where(own_BK | other_BK, logits_BK, EXCLUDED_LOGIT)


def order_loss(alike_B: jax.Array, score_B: jax.Array, weight_B: jax.Array) -> jax.Array:
    """Computes log(1 + sum exp(alike_j - alike_i)) over pairs of rows with score_i > score_j.

    Padding has weight 0.
    """
    real_B = weight_B > 0
    counts_BB = (score_B[:, None] > score_B[None]) & real_B[:, None] & real_B[None]
    gap_BB = jnp.where(counts_BB, alike_B[None] - alike_B[:, None], EXCLUDED_LOGIT)
    return jax.nn.logsumexp(jnp.append(gap_BB.ravel(), 0.0))


def _cosines(vectors_N2D: np.ndarray) -> np.ndarray:
    return np.einsum("ND,ND->N", vectors_N2D[:, 0], vectors_N2D[:, 1])


def _known(given: np.ndarray) -> np.ndarray | None:
    """Returns the scores of rows; None unless all rows have one."""
    if np.isnan(given).any():
        return None
    return given


def texts_of_row(row: Row, number: int) -> list[str]:
    """Returns the anchor of a row, its positive, and its negatives."""
    return [
        text_of(row, "anchor", number),
        text_of(row, "positive", number),
        *_negatives(row, number),
    ]


def _negatives(row: Row, number: int) -> list[str]:
    """Returns the negatives of a row; the column holds none, a text, a list, or its JSON."""
    given = row["negatives"]
    if given in (None, ""):
        return []
    texts = parse_list(given)
    if texts is None or (isinstance(given, str) and not all(isinstance(t, str) for t in texts)):
        texts = [given]
    return [text_of({"negatives": text}, "negatives", number) for text in texts]


def _score(row: Row, number: int) -> np.float32:
    """Returns the score of a row; NaN if it has none."""
    if row["score"] in (None, ""):
        return np.float32(np.nan)
    return number_of(row, "score", number)
