"""The base of objectives that predict tokens.

Adds perplexity, bits per byte, and a unigram baseline to the cross entropy.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    ACCURACY,
    Baseline,
    Dataset,
    Metric,
    Objective,
)
from flaxformer_lite.objectives.sums import LossSums, token_loss
from flaxformer_lite.types import Arrays

MAX_COUNTED_LABELS = 1 << 20  # labels counted for the unigram baseline, at most


@dataclass(frozen=True, kw_only=True)
class TextObjective(Objective):
    """Predicts `labels` with `weights` from the vocabulary.

    The headline is nats per label, without auxiliary losses.

    A subclass may turn z_loss and label_smoothing into options by declaring them as fields.
    """

    head = "lm"
    shown: ClassVar[tuple[Metric, ...]] = (
        Metric("nll", "loss", unit="nats per target"),
        Metric("perplexity", form=",.1f"),
        Metric("bits_per_byte", unit="of predicted text"),
        ACCURACY,
    )
    z_loss = 0.0  # not annotated, so not a field
    label_smoothing = 0.0

    def loss(self, outputs: Any, targets: Arrays, *, chunks: int) -> LossSums:
        return token_loss(self, outputs, targets, chunks)

    def held_out_metrics(self, metrics: dict[str, float], data: Dataset) -> dict[str, float]:
        """Adds perplexity, exp(nll), and bits_per_byte, nll / ln 2 / bytes per target."""
        metrics = metrics | {"perplexity": math.exp(min(metrics["nll"], 700.0))}
        size = bytes_per_target(data)
        if size:
            metrics["bits_per_byte"] = metrics["nll"] / math.log(2) / size
        return metrics

    def fit_baseline(self, data: Dataset) -> Json:
        return {"counts": label_counts(data, "train").tolist()}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        if fitted is None:
            return None
        return "unigram baseline", unigram_loss(data, fitted["counts"])


def unigram_loss(data: Dataset, seen: Sequence[float]) -> float:
    """Returns the loss of the unigram model, in nats per held-out target.

    Its probabilities are the token counts in training plus one, normalized.
    """
    counts = np.asarray(seen) + 1
    held_out = label_counts(data, "eval")
    return float(-(held_out * np.log(counts / counts.sum())).sum() / held_out.sum())


def bytes_per_target(data: Dataset) -> float:
    """Returns the mean number of UTF-8 bytes of text per held-out target; 0 if there is no text.

    Special tokens have none.
    """
    held_out = label_counts(data, "eval")
    sizes = np.asarray([len(piece) for piece in data.tokenizer.pieces()])
    return float((held_out * sizes).sum() / max(held_out.sum(), 1e-9))


@functools.lru_cache(maxsize=4)
def label_counts(data: Dataset, split: str) -> np.ndarray:
    """Counts the labels in a sample of a split, by their weights, float64 [V]."""
    counts = np.zeros(data.vocab_size)
    seen = 0
    for targets in data.sample_targets(split):
        counts += np.bincount(targets["labels"], targets["weights"], data.vocab_size)
        seen += targets["labels"].size
        if seen >= MAX_COUNTED_LABELS:
            break
    return counts
