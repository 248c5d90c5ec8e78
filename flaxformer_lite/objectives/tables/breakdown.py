"""Tables behind a headline: scores per class, which classes are confused, and the worst errors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Cell = str | int | float  # a float is a share, shown with three digits

# With more classes than this, the most frequent confusions are listed instead of a matrix.
CONFUSED = 12
PAIRS = 20
WORST = 10
TEXT = 300  # characters


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


def confusion_matrix(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Counts examples by their true (row) and predicted (column) class, [C, C]."""
    pairs = np.bincount(true * classes + predicted, minlength=classes * classes)
    return pairs.reshape(classes, classes)


def class_table(names: Sequence[str], scores: ClassScores, kind: str = "class") -> Breakdown:
    """Tabulates the scores of each class."""
    rows: list[list[Cell]] = []
    for name, precision, recall, f1, support in zip(names, *scores, strict=True):
        rows.append([name, float(precision), float(recall), float(f1), int(support)])
    return Breakdown(f"scores per {kind}", (kind, "precision", "recall", "F1", "support"), rows)


def confusion_table(names: Sequence[str], counts_CC: np.ndarray) -> Breakdown:
    """Tabulates a confusion matrix, or the most frequent confusions if there are many classes."""
    if len(names) <= CONFUSED:
        rows: list[list[Cell]] = []
        for name, counts in zip(names, counts_CC, strict=True):
            rows.append([name, *map(int, counts)])
        return Breakdown("confusion matrix", ("true \\ predicted", *names), rows)
    wrong_CC = counts_CC * (1 - np.eye(len(names), dtype=counts_CC.dtype))
    order = np.argsort(-wrong_CC, axis=None, kind="stable")[:PAIRS]
    rows = []
    for true, predicted in zip(*np.unravel_index(order, wrong_CC.shape), strict=True):
        count = int(wrong_CC[true, predicted])
        if count:
            share = count / float(counts_CC[true].sum())
            rows.append([names[true], names[predicted], count, share])
    head = ("true", "predicted", "examples", "share of the true class")
    return Breakdown("most frequent confusions", head, rows)


def worst_table(
    head: Sequence[str], badness: np.ndarray, row: Callable[[int], list[Cell]]
) -> Breakdown:
    """Lists the worst errors: `row(i)` for the wrong examples of greatest `badness`.

    An example is wrong if its badness is above 0.
    """
    order = np.argsort(-badness, kind="stable")[:WORST]
    return Breakdown("worst errors", tuple(head), [row(int(i)) for i in order if badness[i] > 0])


def cell_text(cell: Cell) -> str:
    """Formats a cell for display."""
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return str(cell)


def shortened(text: str) -> str:
    """Puts a text on one line and truncates it."""
    line = " ".join(text.split())
    if len(line) <= TEXT:
        return line
    return f"{line[: TEXT - 4]} ..."
