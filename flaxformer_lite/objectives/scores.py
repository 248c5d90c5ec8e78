"""Scores of predictions by the libraries that the field quotes, of the extra `evaluate`; without it
there are fewer."""

import functools
import importlib
import logging
from typing import Any

import numpy as np

LOG = logging.getLogger("flaxformer_lite")


@functools.cache
def library(name: str) -> Any:
    """Imports a library of the extra; None, said once, if it is not installed."""
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
    """Computes F1 (of the second of two classes, as GLUE has it; else the macro mean) and the
    Matthews correlation.

    Args:
      predicted, true: [N] int, numbers of classes.
      classes: how many there are.
    """
    if (metrics := library("sklearn.metrics")) is None:
        return {}
    average = "binary" if classes == 2 else "macro"
    return {
        "f1": float(metrics.f1_score(true, predicted, average=average, zero_division=0)),
        "matthews": (
            float(metrics.matthews_corrcoef(true, predicted))
            if len({*true, *predicted}) > 1
            else 0.0
        ),
    }


def multiple_labels(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Computes micro and macro F1 of labels, bool [N, C]."""
    found = {"f1_micro": micro_f1(predicted, true)}
    if (metrics := library("sklearn.metrics")) is None:
        return found
    return found | {
        "f1_macro": float(
            metrics.f1_score(true > 0, predicted > 0, average="macro", zero_division=0)
        )
    }


def micro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Computes F1 over all pairs of a row and a label."""
    hits = np.sum((predicted > 0) & (true > 0))
    total = np.sum(predicted > 0) + np.sum(true > 0)
    return float(2 * hits / total) if total else 0.0


def correlations(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Computes the Pearson and Spearman correlations of numbers, [N]; 0 where one of the two is
    constant."""
    if (stats := library("scipy.stats")) is None or len(true) < 2:
        return {}
    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    found = {
        "pearson": stats.pearsonr(predicted, true),
        "spearman": stats.spearmanr(predicted, true),
    }
    return {name: float(result.statistic) for name, result in found.items()}


def translation(written: list[str], references: list[str]) -> dict[str, float]:
    """Computes BLEU and chrF of a corpus, from 0 to 100, as sacrebleu defines them (Post 2018,
    Popović 2015)."""
    if (sacrebleu := library("sacrebleu")) is None:
        return {}
    found = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}
    return {name: compute(written, [references]).score for name, compute in found.items()}


def summaries(written: list[str], references: list[str]) -> dict[str, float]:
    """Computes the mean F1 of ROUGE-1, ROUGE-2 and the summary-level ROUGE-L, from 0 to 1, with
    stems (Lin 2004)."""
    if (rouge := library("rouge_score.rouge_scorer")) is None:
        return {}
    names = ("rouge1", "rouge2", "rougeLsum")
    scorer = rouge.RougeScorer(names, use_stemmer=True)
    each = [
        scorer.score(reference, text) for reference, text in zip(references, written, strict=True)
    ]
    return {name: float(np.mean([one[name].fmeasure for one in each])) for name in names}


def entities(predicted: list[list[str]], true: list[list[str]]) -> dict[str, float]:
    """Computes precision, recall and F1 of entities, as conlleval does: right if both borders and
    the kind are."""
    if (metrics := library("seqeval.metrics.sequence_labeling")) is None:
        return {}
    found = metrics.precision_recall_fscore_support(
        true, predicted, average="micro", zero_division=0
    )
    return dict(zip(("precision", "recall", "f1"), map(float, found), strict=False))
