"""Scores of predictions.

Scores of texts come from the libraries that the field quotes, of the extra `evaluate`; without it
they are left out.
"""

import collections
import functools
import importlib
import logging
import math
from types import ModuleType

import numpy as np

from flaxformer_lite.objectives.tables.breakdown import ClassScores, class_scores, confusion_matrix

LOG = logging.getLogger("flaxformer_lite")


@functools.cache
def import_library(name: str) -> ModuleType | None:
    """Imports a library of the extra; returns None, with one warning, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        LOG.warning(
            "%s is not installed: pip install 'flaxformer_lite[evaluate]' adds the scores that it"
            " computes.",
            name.partition(".")[0],
        )
        return None


def single_label(predicted: np.ndarray, true: np.ndarray, *, classes: int) -> dict[str, float]:
    """Computes F1 and the Matthews correlation.

    F1 is that of the second of two classes, as in GLUE, else the macro mean over the classes that
    are true or predicted somewhere.

    Args:
      predicted, true: [N] int, numbers of classes.
      classes: how many there are.

    References: Gorodkin 2004 for the Matthews correlation of several classes. The values are those
    of scikit-learn.
    """
    counts_CC = confusion_matrix(predicted, true, classes)
    hits_C = counts_CC.diagonal()
    predicted_C = counts_CC.sum(axis=0)
    true_C = counts_CC.sum(axis=1)
    f1_C = class_scores(hits_C, predicted_C, true_C).f1
    f1 = f1_C[1] if classes == 2 else f1_C[predicted_C + true_C > 0].mean()
    # A float, as its fourth power, below, exceeds int64 from 55,109 rows on.
    count = float(len(true))
    covariance = hits_C.sum() * count - predicted_C @ true_C
    spread = (count**2 - predicted_C @ predicted_C) * (count**2 - true_C @ true_C)
    matthews = covariance / math.sqrt(spread) if spread else 0.0
    return {"f1": float(f1), "matthews": float(matthews)}


def multiple_labels(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Computes micro and macro F1 of labels, bool [N, C]."""
    return {
        "f1_micro": micro_f1(predicted, true),
        "f1_macro": float(label_scores(predicted, true).f1.mean()),
    }


def label_scores(predicted: np.ndarray, true: np.ndarray) -> ClassScores:
    """Computes the scores of each label, bool [N, C]."""
    hits_C = np.sum((predicted > 0) & (true > 0), axis=0)
    return class_scores(hits_C, np.sum(predicted > 0, axis=0), np.sum(true > 0, axis=0))


def best_thresholds(shares: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds for each label the probability above which F1 is highest on these rows.

    Args:
      shares: the probabilities of the labels, [N, C].
      true: whether a row has a label, bool [N, C].

    Returns:
      The thresholds, halfway between two rows' probabilities, and the F1, both [C].
    """
    order_NC = np.argsort(-shares, axis=0, kind="stable")
    shares_NC = np.take_along_axis(shares, order_NC, axis=0)
    hits_NC = np.cumsum(np.take_along_axis(true > 0, order_NC, axis=0), axis=0)
    chosen_N = np.arange(1, len(shares) + 1)
    f1_NC = 2 * hits_NC / (chosen_N[:, None] + hits_NC[-1][None])
    below_NC = np.concatenate([shares_NC[1:], np.zeros_like(shares_NC[:1])])
    f1_NC[below_NC == shares_NC] = -1.0  # equal probabilities are all above it, or none
    best_C = f1_NC.argmax(axis=0)
    at = best_C, np.arange(shares.shape[1])
    return (shares_NC[at] + below_NC[at]) / 2, f1_NC[at]


def micro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Computes F1 over all pairs of a row and a label."""
    hits = np.sum((predicted > 0) & (true > 0))
    total = np.sum(predicted > 0) + np.sum(true > 0)
    if not total:
        return 0.0
    return float(2 * hits / total)


def compute_correlations(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Computes the Pearson and Spearman correlations of numbers, [N].

    They are 0 where one of the two is constant.
    """
    stats = import_library("scipy.stats")
    if stats is None or len(true) < 2:
        return {}
    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(stats.pearsonr(predicted, true).statistic),
        "spearman": float(stats.spearmanr(predicted, true).statistic),
    }


def translation(written: list[str], references: list[str]) -> dict[str, float]:
    """Computes corpus BLEU and chrF, from 0 to 100, as sacrebleu (Post 2018, Popović 2015)."""
    sacrebleu = import_library("sacrebleu")
    if sacrebleu is None:
        return {}
    return {
        "bleu": sacrebleu.corpus_bleu(written, [references]).score,
        "chrf": sacrebleu.corpus_chrf(written, [references]).score,
    }


def summaries(written: list[str], references: list[str]) -> dict[str, float]:
    """Computes the mean F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L.

    Scores are from 0 to 1, with stemming (Lin 2004).
    """
    rouge = import_library("rouge_score.rouge_scorer")
    if rouge is None:
        return {}
    names = ("rouge1", "rouge2", "rougeLsum")
    scorer = rouge.RougeScorer(names, use_stemmer=True)
    pairs = zip(references, written, strict=True)
    results = [scorer.score(reference, text) for reference, text in pairs]
    means = {}
    for name in names:
        means[name] = float(np.mean([result[name].fmeasure for result in results]))
    return means


def entities(predicted: list[list[str]], true: list[list[str]]) -> dict[str, float]:
    """Computes precision, recall and F1 of entities, which must match in both borders and kind."""
    by_kind = entity_scores(predicted, true)
    hits = chosen = real = 0
    if by_kind:
        hits, chosen, real = np.sum(list(by_kind.values()), axis=0)
    total = class_scores(np.atleast_1d(hits), np.atleast_1d(chosen), np.atleast_1d(real))
    return {
        "precision": float(total.precision[0]),
        "recall": float(total.recall[0]),
        "f1": float(total.f1[0]),
    }


def entity_scores(
    predicted: list[list[str]], true: list[list[str]]
) -> dict[str, tuple[int, int, int]]:
    """Counts correctly predicted, predicted, and true entities of each kind."""
    chosen = _numbered_spans(predicted)
    real = _numbered_spans(true)
    hits = _count_kinds(chosen & real)
    all_chosen = _count_kinds(chosen)
    all_real = _count_kinds(real)
    kinds = sorted(all_chosen.keys() | all_real.keys())
    return {kind: (hits[kind], all_chosen[kind], all_real[kind]) for kind in kinds}


def _numbered_spans(rows: list[list[str]]) -> set[tuple[int, str, int, int]]:
    """Returns the entities of all rows, as (row, kind, first word, last word)."""
    numbered = set()
    for row, tags in enumerate(rows):
        for kind, first, last in spans(tags):
            numbered.add((row, kind, first, last))
    return numbered


def _count_kinds(entities: set[tuple[int, str, int, int]]) -> collections.Counter[str]:
    return collections.Counter(kind for _, kind, _, _ in entities)


def spans(tags: list[str]) -> list[tuple[str, int, int]]:
    """Returns the entities in a sequence of tags, as (kind, first word, last word).

    Reads BIO, IOB2 and BIOES as conlleval and seqeval's default mode do: an entity begins at B or
    S, after O, E or S, and where the kind changes, even if its own tag says that it continues.
    """
    entities = []
    before = "O"
    kind = ""
    start = 0
    for index, tag in enumerate([*tags, "O"]):
        mark, _, kind_of_tag = tag.partition("-")
        if before != "O" and (mark in "BSO" or before in "ES" or kind_of_tag != kind):
            entities.append((kind, start, index - 1))
            before = "O"
        if mark != "O" and before == "O":
            start = index
        before = mark
        kind = kind_of_tag
    return entities
