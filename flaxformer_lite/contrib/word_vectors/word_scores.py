"""Scores word vectors against human judgements: analogies, and similarities of pairs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import quote_value, read_text
from flaxformer_lite.objectives.tables.scores import compute_correlations
from flaxformer_lite.pretrained.word_vectors import WordVectors

QUESTION_BATCH = 512  # questions at a time
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


class Section(NamedTuple):
    """The result of a section of questions.

    Attributes:
      name: the name of the section.
      total: the number of questions.
      known: the number of questions whose words are all known.
      right: the number of questions that were answered correctly.
    """

    name: str
    total: int
    known: int
    right: int


def score_analogies(vectors: WordVectors, path: Path) -> list[Section]:
    """Answers questions "a is to b as c is to d", and counts the right answers.

    A question is known if each of its four words is one token. Its answer is the token nearest to
    b - a + c, other than a, b and c in any spelling.

    Args:
      vectors: the word vectors.
      path: a file with four words on each line, and sections that begin with a line ": name".

    Raises:
      ConfigError: a line of the file has another form.
    """
    name = ""
    sections = dict[str, list[list[str]]]()
    for number, line in _lines(path):
        words = line.split()
        if line.startswith(":"):
            name = line[1:].strip()
        elif len(words) == 4:
            sections.setdefault(name, []).append(words)
        else:
            raise ConfigError(
                f"{path}:{number}: {quote_value(line)}: must be four words, or a section's name"
                " after a colon."
            )
    if not sections:
        raise ConfigError(f"{path}: no question; its lines must be four words each.")
    return [_score(vectors, name, questions) for name, questions in sections.items()]


def _score(vectors: WordVectors, name: str, questions: list[list[str]]) -> Section:
    known = []
    for words in questions:
        numbers = [vectors.find(word) for word in words]
        if None not in numbers:
            known.append(numbers)
    known_Q4 = np.asarray(known, np.int64).reshape(-1, 4)
    unit_WD = vectors.unit_WD
    spellings = [vectors.spellings[word.casefold()] for word in vectors.words]
    right = 0
    for begin in range(0, len(known_Q4), QUESTION_BATCH):
        part_Q4 = known_Q4[begin : begin + QUESTION_BATCH]
        a, b, c = unit_WD[part_Q4.T[:3]]
        cosine_QW = (b - a + c) @ unit_WD.T
        for row, (*given, answer) in enumerate(part_Q4):
            for word in given:
                cosine_QW[row, spellings[word]] = -np.inf
            right += int(cosine_QW[row].argmax()) in spellings[answer]
    return Section(name, len(questions), len(known_Q4), right)


def score_pairs(vectors: WordVectors, path: Path) -> dict[str, float]:
    """Correlates cosines with human scores of word pairs.

    Args:
      vectors: the word vectors.
      path: a file with two words and a number on each line, separated by tabs or commas. The first
        line may have titles.

    Returns:
      The correlations `spearman` and `pearson` over the known pairs, whose words are one token
      each; their number `known`, and the number of all pairs, `total`.

    Raises:
      ConfigError: a line of the file has another form.
    """
    pairs: list[tuple[list[int | None], float]] = []
    for number, line in _lines(path):
        separator = ","
        if "\t" in line:
            separator = "\t"
        *words, last = line.split(separator)
        score = NUMBER.fullmatch(last.strip())
        if len(words) != 2 or (pairs and not score):
            raise ConfigError(
                f"{path}:{number}: {quote_value(line)}: must be two words and a number, by tabs or"
                " commas."
            )
        if score:
            pairs.append(([vectors.find(word.strip()) for word in words], float(score[0])))
    if not pairs:
        raise ConfigError(f"{path}: no pair; its lines must be two words and a number each.")
    known = [(*words, score) for words, score in pairs if None not in words]
    first, second, scores = np.asarray(known, float).reshape(-1, 3).T
    cosines = np.einsum(
        "PD,PD->P", vectors.unit_WD[first.astype(int)], vectors.unit_WD[second.astype(int)]
    )
    return compute_correlations(cosines, scores) | {"total": len(pairs), "known": len(known)}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the number and text of each line that is neither blank nor a comment."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text
