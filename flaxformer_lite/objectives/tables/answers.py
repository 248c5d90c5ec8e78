"""Answers that are parts of a text: parsing, search for the best span, and SQuAD's scores.

References: Rajpurkar et al. 2016 (arXiv:1606.05250), section 6.1, for exact match and F1; Rajpurkar
et al. 2018 (arXiv:1806.03822) for questions without an answer.
"""

import collections
import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answer(NamedTuple):
    """A part of a text, and the character at which it starts."""

    text: str
    start: int


def answers_of(value: Any, context: str, where: str) -> list[Answer]:
    """Parses the answers of a row.

    They are {text, answer_start} with lists or single values, a list of these, or a text alone.

    Raises:
      ConfigError: they have another form, or the context does not hold them there.
    """
    pairs: list[tuple[str, int]] = []
    if isinstance(value, str):
        if value:
            pairs.append((value, context.find(value)))  # a text stands for its first occurrence
    elif value is not None:
        try:
            for given in value if isinstance(value, list) else [value]:
                pairs += _pairs(given["text"], given["answer_start"])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{where}: answers={str(value)[:80]!r} must be a text, or have text and"
                " answer_start, of equal length."
            ) from None
    for text, start in pairs:
        held = isinstance(text, str) and isinstance(start, int) and start >= 0
        if not held or context[start : start + len(text)] != text:
            raise ConfigError(
                f"{where}: the context does not have the answer {str(text)[:80]!r} at character"
                f" {start}."
            )
    answers = []
    for text, start in pairs:
        if text.strip():
            indent = len(text) - len(text.lstrip())
            answers.append(Answer(text.strip(), start + indent))
    return answers


def _pairs(texts: Any, starts: Any) -> list[tuple[str, int]]:
    """Returns the non-empty texts of one answer or of lists, each with its start."""
    if isinstance(texts, str):
        return [(texts, starts)] if texts else []
    return [(text, start) for text, start in zip(texts, starts, strict=True) if text != ""]


def best_span(start_T: np.ndarray, end_T: np.ndarray, longest: int) -> tuple[float, int, int]:
    """Returns the highest start_T[i] + end_T[j] with i <= j < i + longest, and i and j.

    The sum is -inf for T = 0.
    """
    best = -np.inf, 0, 0
    for more in range(min(longest, len(start_T))):
        sums = start_T[: len(start_T) - more] + end_T[more:]
        at = int(sums.argmax())
        best = max(best, (float(sums[at]), at, at + more), key=lambda span: span[0])
    return best


def normalized(text: str) -> str:
    """Removes what SQuAD's scores ignore: case, punctuation, articles and extra whitespace."""
    letters = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", letters).split())


def squad_scores(predicted: Sequence[str], true: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes the means of exact match and of F1 over words.

    Each question counts its best score over all true answers.

    Args:
      predicted: an answer per question; empty for none.
      true: the true answers of each; empty where there is none.
    """
    exact = []
    f1 = []
    for answer, answers in zip(predicted, true, strict=True):
        given = normalized(answer)
        expected = list(filter(None, map(normalized, answers))) or [""]
        exact.append(given in expected)
        overlaps = [_overlap(given.split(), text.split()) for text in expected]
        f1.append(max(overlaps))
    return {"f1": float(np.mean(f1)), "exact": float(np.mean(exact))}


def _overlap(given: list[str], expected: list[str]) -> float:
    """Computes F1 of two bags of words; two empty bags match."""
    if not given or not expected:
        return float(given == expected)
    shared = collections.Counter(given) & collections.Counter(expected)
    return 2 * shared.total() / (len(given) + len(expected))
