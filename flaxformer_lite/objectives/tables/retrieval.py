"""Retrieval: the rank of each question's answer among all answers, and a tf-idf baseline."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from flaxformer_lite.objectives.base import score_metric
from flaxformer_lite.objectives.tables.scores import import_library

if TYPE_CHECKING:
    from scipy.sparse import csr_array

QUESTIONS_AT_ONCE = 512  # questions compared with all answers at a time
Vectors: TypeAlias = "np.ndarray | csr_array"
METRICS = (
    score_metric("mrr", "mean reciprocal rank"),
    score_metric("recall_1", "recall at 1", form=".1%", live=True),
    score_metric("recall_10", "recall at 10", form=".1%", live=True),
)


def ranks(question_ND: Vectors, answer_ND: Vectors, pairs_N2: np.ndarray) -> np.ndarray:
    """Computes the rank of each row's answer by dot product, [N] int, from 1.

    It is the rank among the distinct answers of all rows.

    Other answers of the same question are left out, and so is the question's own text; ties count
    against a row.

    Args:
      question_ND, answer_ND: vectors, dense or of scipy.sparse.
      pairs_N2: numbers of the texts of question and answer, the same for the same text.
    """
    known, first, column_N = np.unique(pairs_N2[:, 1], return_index=True, return_inverse=True)
    column_of = {int(text): column for column, text in enumerate(known)}
    right: dict[int, set[int]] = {}
    for (question, _), column in zip(pairs_N2.tolist(), column_N.tolist(), strict=True):
        right.setdefault(question, {column_of.get(question, column)}).add(column)
    ranks_of_blocks = []
    for start in range(0, len(pairs_N2), QUESTIONS_AT_ONCE):
        rows = slice(start, start + QUESTIONS_AT_ONCE)
        similar = question_ND[rows] @ answer_ND[first].T
        if not isinstance(similar, np.ndarray):
            similar = similar.toarray()
        ahead = similar >= np.take_along_axis(similar, column_N[rows, None], axis=1)
        for row, question in zip(ahead, pairs_N2[rows, 0].tolist(), strict=True):
            row[list(right[question])] = False
        ranks_of_blocks.append(1 + ahead.sum(axis=1))
    return np.concatenate(ranks_of_blocks)


def scores(rank_N: np.ndarray) -> dict[str, float]:
    """Computes the mean reciprocal rank, and recall at 1 and 10."""
    recall = {f"recall_{k}": float((rank_N <= k).mean()) for k in (1, 10)}
    return {"mrr": float((1 / rank_N).mean()), **recall}


def sum_discounted(ranks: Iterable[int]) -> float:
    """Computes the discounted gain of right documents at these ranks, from 1."""
    return math.fsum(1 / math.log2(rank + 1) for rank in ranks)


def same_words(first: Sequence[str], second: Sequence[str]) -> "tuple[csr_array, csr_array] | None":
    """Returns tf-idf vectors of unit length, sparse [N, words] each.

    Returns None without scikit-learn, or without words.
    """
    text = import_library("sklearn.feature_extraction.text")
    if text is None:
        return None
    try:
        words = text.TfidfVectorizer(token_pattern=r"\w+").fit([*first, *second])
    except ValueError:  # no words
        return None
    return words.transform(first), words.transform(second)


def words_of_rows(
    rows: Iterable[Mapping[str, str]], first: str, second: str
) -> "tuple[csr_array, csr_array] | None":
    """Returns tf-idf vectors of the texts of two roles, as `same_words` does."""
    return same_words([row[first] for row in rows], [row[second] for row in rows])


def cosines(first_NW: "csr_array", second_NW: "csr_array") -> np.ndarray:
    """Computes the cosine of each row's two tf-idf vectors, [N]."""
    return np.asarray(first_NW.multiply(second_NW).sum(axis=1)).ravel()
