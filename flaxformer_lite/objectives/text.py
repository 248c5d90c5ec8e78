"""Objectives that predict tokens: cross entropy, perplexity, bits per byte, and the unigram model they must beat."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.losses import pieces_of
from flaxformer_lite.objectives.base import Metric, Objective
from flaxformer_lite.objectives.sums import LossSums, check, token_loss

COUNTED = 1 << 20  # labels counted for the unigram baseline, at most
ACCURACY = Metric("accuracy", form=".1%", higher_is_better=True, live=True)


@dataclass(frozen=True, kw_only=True)
class TextObjective(Objective):
    """Predicts `labels` with `weights` out of the vocabulary; the headline is their nats, auxiliary losses left out.

    A subclass may make options of z_loss and label_smoothing by declaring them as fields.
    """

    head: ClassVar[str] = "lm"
    shown: ClassVar[tuple[Metric, ...]] = (
        Metric("nll", "loss", unit="nats per target"),
        Metric("perplexity", form=",.1f"),
        Metric("bits_per_byte", unit="of predicted text"),
        ACCURACY,
    )
    z_loss = 0.0  # no annotation, hence no field
    label_smoothing = 0.0

    def __post_init__(self) -> None:
        check(self)

    def loss(self, outputs: Any, targets: Mapping[str, Any], *, chunks: int) -> LossSums:
        return token_loss(self, outputs, targets, chunks)

    def held_out_metrics(self, metrics: dict[str, float], data: Any) -> dict[str, float]:
        """With perplexity, exp(nll), and bits_per_byte, nll / ln 2 / bytes of text that a target stands for."""
        nll = metrics["nll"]
        bits_per_byte = nll / math.log(2) / bytes_per_target(data)
        return metrics | {"perplexity": math.exp(min(nll, 700.0)), "bits_per_byte": bits_per_byte}

    def baseline(self, data: Any) -> tuple[str, float]:
        return "unigram baseline", unigram_loss(data)

    def transient_logits(self, batch: Any, model: ModelConfig, rows: int, accumulate: int, chunks: int) -> int:
        count, *shape = batch["targets"]["labels"].shape
        labels, decoder = math.prod(shape), model.of_decoder
        pieces = pieces_of(labels * count // accumulate, decoder.d_model, chunks)
        return rows * -(-labels // pieces) * decoder.vocab_size


def unigram_loss(data: Any) -> float:
    """What a model would lose that knows only how frequent each token is, in nats per held-out target.

    Frequencies are those of the training labels, plus one for every id of the vocabulary.
    """
    counts, held_out = _label_counts(data, "train") + 1, _label_counts(data, "eval")
    return float(-(held_out * np.log(counts / counts.sum())).sum() / held_out.sum())


def bytes_per_target(data: Any) -> float:
    """UTF-8 bytes of text that a held-out target stands for, on average; special tokens stand for none."""
    held_out = _label_counts(data, "eval")
    sizes = np.asarray([len(piece) for piece in data.tokenizer.pieces()])
    return float((held_out * sizes).sum() / held_out.sum())


@functools.lru_cache(maxsize=4)
def _label_counts(data: Any, split: str) -> np.ndarray:
    """Weight of each id among the labels, [V] float64, of a sample of up to COUNTED labels."""
    counts, seen = np.zeros(data.vocab_size), 0
    for targets in data.sample_targets(split):
        counts += np.bincount(targets["labels"], targets["weights"], data.vocab_size)
        seen += targets["labels"].size
        if seen >= COUNTED:
            break
    return counts
