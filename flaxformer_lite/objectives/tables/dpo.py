"""Direct preference optimization.

A decoder learns which of two answers is preferred, without a reward model.

Reference: Rafailov et al. 2023, "Direct Preference Optimization", equation 7 (arXiv:2305.18290);
label smoothing is equation 3 of Mitchell 2023, "A note on DPO with noisy preferences".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import Positive, Probability
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.nn.functions.losses import DeferredLogits, token_log_probs
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
    Record,
    Rows,
    StoredColumn,
    fill_row,
)
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables.chat import (
    VARIABLES,
    ChatTask,
    asked_and_answered,
    check_known,
    messages_of,
    variables_of,
)
from flaxformer_lite.objectives.tables.task import Column, Row
from flaxformer_lite.objectives.tables.writing import METRICS
from flaxformer_lite.text.roles import ANSWERS, Messages
from flaxformer_lite.types import Arrays

SIDES = ("chosen", "rejected")


Answers = tuple[DeferredLogits, dict[str, jax.Array]]  # with the inputs that the loss reads


@dataclass(frozen=True, kw_only=True)
class Dpo(ChatTask):
    """Minimizes -log sigmoid(r_w - r_l), r = beta log(p(answer | prompt) / p_0(answer | prompt)).

    p_0 are the starting weights, whose log-probabilities are computed once, before the first
    step. Chosen answer w and rejected answer l share a row, each with the prompt and half of its
    tokens, and do not see each other. Where they are conversations, only the last answer counts. A
    side that is too long loses its end; a row is dropped if a side has no answer left.
    """

    beta: Positive = 0.1
    label_smoothing: Probability = 0.0  # the share of rows whose preference is taken to be wrong

    learn = "last"
    reference = "log_probs"
    # where the ids of the rejected side begin
    stored: ClassVar = {**ChatTask.stored, "second": StoredColumn("int32", ())}
    columns = (
        Column("prompt", ("instruction", "question", "messages", "conversations"), optional=True),
        Column("chosen", ("preferred",), predicted=True),
        Column("rejected", (), predicted=True),
        *VARIABLES,
    )
    sample = ({"prompt": "a", "chosen": "b", "rejected": "c"},)

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        shown: tuple[Metric, ...] = (
            score_metric("reward_accuracy", form=".1%", live=True),
            score_metric("margin", "reward margin", live=True),
            Metric("loss", unit="nats per pair"),
            score_metric("chosen_reward"),
            Metric("rejected_reward"),
        )
        if self.written_rows:
            shown += METRICS[self.scored_by]
        return shown

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        known = all(row[side] is not None for row in rows for side in SIDES)
        sides = []
        for side in SIDES:
            chats = []
            for number, row in enumerate(rows):
                chats.append(variables_of(row, _messages(row, side, number), number))
            sides.append(self.turns(chats, encoder.length // 2, encoder))
        records: list[list[Encoded]] = []
        for pair in zip(*sides, strict=True):
            if known and not all(turns.answers.any() for turns in pair):
                records.append([])
                continue
            chosen, rejected = pair
            joined = {
                "ids": np.concatenate([chosen.ids, rejected.ids]),
                "answers": np.concatenate([chosen.answers, rejected.answers]),
                "second": len(chosen.ids),
                "cut": chosen.cut + rejected.cut,
            }
            records.append([chosen._asdict() | joined])
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, segment_ids, labels, answers, [T] int32, reference, [2].

        segment_ids are 1 for the chosen and 2 for the rejected side; answers likewise, else 0. The
        target is weights, [] float32.
        """
        record = records.pieces(index)[0]
        room = records.length + 1
        pad = records.tokenizer.pad_id
        ids, segments = fill_row(np.split(record["ids"], [record["second"]]), room, pad)
        answers, _ = fill_row(_answers_of(record), room, 0)
        reference = np.zeros(2, np.float32)
        if records.reference is not None:
            reference = records.reference[index]
        inputs = {
            "input_ids": ids[:-1],
            "segment_ids": segments[:-1],
            "labels": ids[1:],
            "answers": (answers * segments)[1:],
            "reference": reference,
        }
        return {"inputs": inputs, "targets": {"weights": np.float32(1)}}

    def outputs(self, model: nn.Module, inputs: Arrays) -> Answers:
        others = dict(inputs)
        tokens = {name: others.pop(name) for name in ("input_ids", "segment_ids")}
        return model.features(**tokens).projection, others

    def loss(self, outputs: Answers, targets: Arrays, *, chunks: int) -> LossSums:
        reward_B2 = self.beta * (answer_log_probs(outputs, chunks) - outputs[1]["reference"])
        weight_B = targets["weights"]
        margin_B = reward_B2[:, 0] - reward_B2[:, 1]
        right = jax.nn.log_sigmoid(margin_B)
        wrong = jax.nn.log_sigmoid(-margin_B)
        loss_B = -(1 - self.label_smoothing) * right - self.label_smoothing * wrong
        count = weight_B.sum()
        metrics = {
            "reward_accuracy": (margin_B > 0).astype(jnp.float32),
            "margin": margin_B,
            "chosen_reward": reward_B2[:, 0],
            "rejected_reward": reward_B2[:, 1],
        }
        return LossSums(
            {"weights": (loss_B * weight_B).sum()},
            {"weights": count},
            {name: ((value * weight_B).sum(), count) for name, value in metrics.items()},
        )

    def predictions(self, outputs: Answers) -> dict[str, jax.Array]:
        return {"log_probs": answer_log_probs(outputs, 4)}

    def held_out_metrics(self, metrics: dict[str, float], data: Dataset) -> dict[str, float]:
        """Returns the metrics, or none for new rows.

        The starting weights have not been evaluated on new rows.
        """
        if data.records.reference is None:
            return {}
        return metrics

    def fit_baseline(self, data: Dataset) -> Json:
        return {}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns how often the longer answer is preferred; ties count half."""
        if data.records.reference is None:
            return None
        longer = []
        for example in range(len(data.records)):
            chosen, rejected = _answers_of(data.records.pieces(example)[0])
            longer.append(np.sign(chosen.sum() - rejected.sum()))
        return "preferring the longer answer", float(np.mean(0.5 + 0.5 * np.asarray(longer)))

    def prompt_and_reference(self, records: Rows, example: int) -> tuple[str, str | None]:
        return asked_and_answered(_messages(records.table_row(example), "chosen", example))


def _answers_of(record: Record) -> list[np.ndarray]:
    """Returns which tokens of the chosen and of the rejected side are of its answer."""
    return np.split(record["answers"], [record["second"]])


def answer_log_probs(outputs: Answers, chunks: int) -> jax.Array:
    """Computes the log-probabilities of the chosen and the rejected answer, [B, 2] float32."""
    projection, inputs = outputs
    log_probs_BT = token_log_probs(projection, inputs["labels"], chunks=chunks)
    chosen_B = jnp.where(inputs["answers"] == 1, log_probs_BT, 0).sum(axis=1)
    rejected_B = jnp.where(inputs["answers"] == 2, log_probs_BT, 0).sum(axis=1)
    return jnp.stack([chosen_B, rejected_B], axis=1)


def _messages(row: Row, side: str, number: int) -> Messages:
    prompt = [] if row["prompt"] is None else messages_of(row["prompt"], number, "prompt")
    if row[side] is None:
        check_known(row, ("prompt",), number)
        return prompt
    answer = messages_of(row[side], number, side)
    if isinstance(row[side], str) and len(answer) == 1:
        answer = [{"role": ANSWERS, "content": answer[0]["content"]}]
    if answer[-1]["role"] != ANSWERS:
        raise ConfigError(
            f"row {number + 1}: {side} ends with a turn of {quote_value(answer[-1]['role'])}, where"
            f" {ANSWERS!r} answers; rename the role."
        )
    if answer[0]["role"] != ANSWERS:  # the whole conversation
        return answer
    check_known(row, ("prompt",), number)
    return prompt + answer
