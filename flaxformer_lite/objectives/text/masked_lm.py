"""Masked language modeling, alone or with a prediction about a pair of texts.

It is the objective of BERT, RoBERTa and ALBERT.

Reference: Devlin et al. 2019, section 3.1, appendix A.1 (arXiv:1810.04805); Liu et al. 2019,
RoBERTa, section 4 (arXiv:1907.11692; its DOC-SENTENCES is `pairs="none"`); Lan et al. 2020, ALBERT,
section 3.1 (arXiv:1909.11942).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np

from flaxformer_lite.config.rules import ConfigError, NotNegative, OneOf, Probability, Share
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.skeletons.outputs import Features
from flaxformer_lite.nn.functions.losses import cross_entropy
from flaxformer_lite.objectives.base import ACCURACY, Metric
from flaxformer_lite.objectives.row_plans import NUM_PLANS, RowPlan, cut_documents, share_rows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, fill_row, row_ids
from flaxformer_lite.objectives.sums import LossSums, token_loss
from flaxformer_lite.objectives.text.text_objective import TextObjective
from flaxformer_lite.types import Arrays

Pairs = Annotated[str, OneOf(("none", "next_sentence", "sentence_order"))]
Unit = Annotated[str, OneOf(("token", "whole_word"))]


@dataclass(frozen=True, kw_only=True)
class MaskedLm(TextObjective):
    """Maximizes sum_{t in m} log P(x_t | x with m hidden).

    The positions m are drawn anew each time an example is seen.

    Without pairs a row is [CLS] piece [SEP], or several of them if pieces are short, none seeing
    another. With pairs it is [CLS] A [SEP] B [SEP], a piece of a document cut in two at random.
    `next_sentence`: in half of the rows B comes from another document (label 1), with the length of
    the B that it replaces, so that the length reveals nothing.
    `sentence_order`: in half of the rows A and B are swapped (label 1).

    A share `mask_share` of the chosen tokens becomes [MASK], `random_share` a random token, and the
    rest stay. Only the chosen positions reach the head, in a fixed number; unused ones point at 0
    and have weight 0.
    """

    rate: Share = 0.15  # share of the tokens that are predicted
    mask_share: NotNegative = 0.8
    random_share: NotNegative = 0.1
    unit: Unit = "token"  # or whole_word: all tokens of a word or none
    pairs: Pairs = "none"  # or next_sentence, sentence_order
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    needs = ("cls_id", "sep_id", "mask_id")
    skeletons = ("encoder",)
    num_plans = NUM_PLANS

    @property
    def head(self) -> str:  # type: ignore[override]  # by `pairs`, where others have one
        return "masked_lm" if self.pairs == "none" else "pretraining"

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        return cls(pairs="next_sentence" if published.get("head") == "pretraining" else "none")

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """The metrics; the headline is the loss of masked tokens only.

        The prediction about pairs is reported as accuracy.
        """
        tokens = Metric("nll", "loss", unit="nats per masked token")
        metrics = (tokens, *super().shown[1:])
        if self.pairs == "none":
            return metrics
        return (*metrics, ACCURACY._replace(name="next_sentence_accuracy", label="pair accuracy"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share={self.mask_share}, random_share={self.random_share}: must add up to at"
                " most 1."
            )

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        marks = 2 if self.pairs == "none" else 3
        if length < marks + 4:
            raise ConfigError(
                f"data.length={length}: too short for masked_lm; must be at least {marks + 4}."
            )
        plan = cut_documents(offsets["ids"], length - marks, minimum=2, shift=shift)
        if self.pairs != "none":
            return plan
        return share_rows(plan, plan.length[:, None].astype(np.int64) + marks, (length,))

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Builds an example, T = records.length, M = ceil(T * rate).

        inputs: input_ids, segment_ids [T], masked_positions [M], all int32; with pairs, one per
          row, token_type_ids and attention_mask [T] instead of segment_ids.
        targets: labels [M] int32, weights [M] float32; with pairs also the scalars
          next_sentence_label int32 and its weight.
        """
        tokenizer = records.tokenizer
        length = records.length
        cls = [tokenizer.cls_id]
        sep = [tokenizer.sep_id]
        if self.pairs == "none":
            texts = [np.concatenate([cls, piece, sep]) for piece in row_ids(records, index)]
            ids, segments = fill_row(texts, length, tokenizer.pad_id)
            inputs = {"segment_ids": segments}
            pair = {}
        else:
            first, second, label = self._pair(records, index, rng)
            ids, segments = fill_row(
                [np.concatenate([cls, first, sep, second, sep])], length, tokenizer.pad_id
            )
            types = np.repeat(np.arange(2), [len(first) + 2, len(second) + 1])
            inputs = {"attention_mask": segments, "token_type_ids": fill_row([types], length, 0)[0]}
            pair = {"next_sentence_label": np.int32(label), "next_sentence_weight": np.float32(1)}
        hidden, positions, labels, weights = self._mask(ids, segments > 0, tokenizer, rng)
        inputs |= {"input_ids": hidden, "masked_positions": positions}
        return {"inputs": inputs, "targets": {"labels": labels, "weights": weights, **pair}}

    def loss(self, outputs: Features, targets: Arrays, *, chunks: int) -> LossSums:
        """Sums the loss of masked tokens and, with pairs, of the prediction about the pair.

        Each has its own weight.
        """
        tokens = token_loss(self, outputs, targets, chunks)
        if self.pairs == "none":
            return tokens
        assert outputs.next_sentence_logits is not None, "of the head `pretraining`"
        labels = targets["next_sentence_label"]
        weights = targets["next_sentence_weight"]
        pairs = cross_entropy(outputs.next_sentence_logits, labels, weights)
        return LossSums(
            {**tokens.loss, "next_sentence_weight": pairs.loss_sum},
            {**tokens.weight, "next_sentence_weight": pairs.weight_sum},
            {**tokens.metrics, "next_sentence_accuracy": (pairs.correct_sum, pairs.weight_sum)},
        )

    def _pair(
        self, records: Rows, index: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        (piece,) = row_ids(records, index)
        at = int(rng.integers(1, len(piece)))
        first = piece[:at]
        second = piece[at:]
        label = int(rng.random() < 0.5)
        if label and self.pairs == "sentence_order":
            return second, first, label
        if label:
            other = records.other_piece(index, rng, len(second) + 1)
            # From 1 on, as the second part that it replaces never begins a piece either.
            start = int(rng.integers(1, max(len(other) - len(second), 1) + 1))
            second = other[start : start + len(second)]
        return first, second, label

    def _mask(
        self, ids: np.ndarray, real: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator
    ) -> tuple:
        count = math.ceil(len(ids) * self.rate)
        candidates = np.flatnonzero(real & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id))
        budget = max(1, round(len(candidates) * self.rate))
        if self.unit == "token":
            chosen = np.sort(rng.permutation(candidates)[:budget])
        else:
            chosen = _whole_words(candidates, tokenizer.starts_word(ids)[candidates], budget, rng)
        hidden = ids.copy()
        fate = rng.random(len(chosen))
        hidden[chosen[fate < self.mask_share]] = tokenizer.mask_id
        swapped = chosen[(fate >= self.mask_share) & (fate < self.mask_share + self.random_share)]
        hidden[swapped] = rng.choice(tokenizer.ordinary_ids, len(swapped))
        positions, filled = fill_row([chosen], count, 0)
        labels, _ = fill_row([ids[chosen]], count, tokenizer.pad_id)
        return hidden, positions, labels, filled.astype(np.float32)


def _whole_words(
    candidates: np.ndarray, starts: np.ndarray, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Chooses random words with at most `budget` tokens in total; returns their sorted positions.

    A word is a candidate that starts a word and those after it that do not; words that do not fit
    are skipped. If no word is short enough, a single token is chosen.
    """
    number = np.cumsum(starts) - starts[0]
    sizes = np.bincount(number)
    order = rng.permutation(len(sizes))
    taken = np.zeros(len(sizes), bool)
    while len(order) and budget:
        order = order[sizes[order] <= budget]
        fits = np.cumsum(sizes[order]) <= budget
        taken[order[fits]] = True
        budget -= int(sizes[order[fits]].sum())
        order = order[~fits]
    if not taken.any():
        return rng.choice(candidates, 1)
    return candidates[taken[number]]
