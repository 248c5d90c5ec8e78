"""Tables behind a headline: scores per class, which classes are confused, and the worst errors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

Cell = str | int | float  # a float is a share, shown with three digits

# With more classes than this, the most frequent confusions are listed instead of a matrix.
MAX_MATRIX_CLASSES = 12
MAX_CONFUSED_PAIRS = 20  # confusions that are listed, at most
MAX_WORST_ERRORS = 10  # errors that are listed, at most
MAX_TEXT_CHARACTERS = 300


class Breakdown(NamedTuple):
    """A table about predictions on held-out examples."""

    title: str
    head: tuple[str, ...]
    rows: list[list[Cell]]


class ClassScores(NamedTuple):
    """Scores of each class, [C]; 0 where a ratio has no denominator."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray  # how often the class is true


def class_scores(hits_C: np.ndarray, predicted_C: np.ndarray, true_C: np.ndarray) -> ClassScores:
    """Computes scores from each class's correct predictions, predictions, and true labels."""

    def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
        return above / np.maximum(below, 1)

    return ClassScores(
        precision=ratio(hits_C, predicted_C),
        recall=ratio(hits_C, true_C),
        f1=ratio(2 * hits_C, predicted_C + true_C),
        support=true_C,
    )


def confusion_matrix(predicted: np.ndarray, true: np.ndarray, classes: int) -> csr_array:
    """Counts examples by their true (row) and predicted (column) class, sparse [C, C]."""
    ones = np.ones(len(true), np.int64)
    return csr_array((ones, (true, predicted)), shape=(classes, classes))  # which adds them up


def class_table(names: Sequence[str], scores: ClassScores, kind: str = "class") -> Breakdown:
    """Tabulates the scores of each class."""
    rows: list[list[Cell]] = []
    for name, precision, recall, f1, support in zip(names, *scores, strict=True):
        rows.append([name, float(precision), float(recall), float(f1), int(support)])
    return Breakdown(f"scores per {kind}", (kind, "precision", "recall", "F1", "support"), rows)


def confusion_table(names: Sequence[str], counts_CC: csr_array) -> Breakdown:
    """Tabulates a confusion matrix, or the most frequent confusions if there are many classes."""
    if len(names) <= MAX_MATRIX_CLASSES:
        rows: list[list[Cell]] = []
        for name, counts in zip(names, counts_CC.toarray(), strict=True):
            rows.append([name, *map(int, counts)])
        return Breakdown("confusion matrix", ("true \\ predicted", *names), rows)
    true_C = counts_CC.sum(axis=1)
    pairs = counts_CC.tocoo()
    wrong_P = np.where(pairs.row == pairs.col, 0, pairs.data)
    rows = []
    for pair in np.lexsort((pairs.col, pairs.row, -wrong_P))[:MAX_CONFUSED_PAIRS]:
        count = int(wrong_P[pair])
        if count:
            true = pairs.row[pair]
            share = count / float(true_C[true])
            rows.append([names[true], names[pairs.col[pair]], count, share])
    head = ("true", "predicted", "examples", "share of the true class")
    return Breakdown("most frequent confusions", head, rows)


def confusion_tables(
    names: Sequence[str], counts_CC: csr_array, kind: str = "class"
) -> list[Breakdown]:
    """Tabulates the scores of each class, and which are confused, from a confusion matrix."""
    values = class_scores(counts_CC.diagonal(), counts_CC.sum(axis=0), counts_CC.sum(axis=1))
    return [class_table(names, values, kind), confusion_table(names, counts_CC)]


def worst_table(
    head: Sequence[str], badness: np.ndarray, row: Callable[[int], list[Cell]]
) -> Breakdown:
    """Lists the worst errors: `row(i)` for the wrong examples of greatest `badness`.

    An example is wrong if its badness is above 0.
    """
    order = np.argsort(-badness, kind="stable")[:MAX_WORST_ERRORS]
    return Breakdown("worst errors", tuple(head), [row(int(i)) for i in order if badness[i] > 0])


def cell_text(cell: Cell) -> str:
    """Formats a cell for display."""
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return str(cell)


def shorten_text(text: str) -> str:
    """Puts a text on one line and truncates it."""
    line = " ".join(text.split())
    if len(line) <= MAX_TEXT_CHARACTERS:
        return line
    return f"{line[: MAX_TEXT_CHARACTERS - 4]} ..."
