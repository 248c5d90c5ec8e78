import itertools
import math

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.tables.answers import (
    Answer,
    answers_of,
    best_span,
    normalized,
    squad_scores,
)

CONTEXT = "In 1066 the Normans came; the Normans stayed."


@pytest.mark.parametrize(
    "value",
    [
        {"text": ["the Normans"], "answer_start": [8]},
        {"text": "the Normans", "answer_start": 8},
        [{"text": "the Normans", "answer_start": 8}],
        "the Normans",
        {"text": [" the Normans "], "answer_start": [7]},  # white space is no part of an answer
    ],
)
def test_forms_of_an_answer(value):
    assert answers_of(value, CONTEXT, "row 1") == [Answer("the Normans", 8)]


@pytest.mark.parametrize(
    "value", [None, "", [], {"text": [], "answer_start": []}, {"text": [""], "answer_start": [0]}]
)
def test_forms_of_no_answer(value):
    assert answers_of(value, CONTEXT, "row 1") == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("Saxons", r"row 7:.*not have the answer.*'Saxons' at character -1"),
        ({"text": ["the Normans"], "answer_start": [9]}, "'the Normans' at character 9"),
        ({"text": ["stayed."], "answer_start": [-7]}, "at character -7"),
        ({"text": ["In"], "answer_start": ["0"]}, "the answer 'In' at character 0"),
        ({"text": [3], "answer_start": [0]}, "the answer '3' at character 0"),
        ({"text": ["In"]}, r"text.*answer_start"),
        ({"text": ["In", "1066"], "answer_start": [0]}, "of equal length"),
        (17, "row 7: answers='17' must be a text"),
    ],
)
def test_other_forms_are_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        answers_of(value, CONTEXT, "row 7")


def test_best_span_is_that_of_all_pairs():
    draw = np.random.default_rng(0)
    for length, longest in [(1, 5), (7, 3), (9, 9), (12, 40)]:
        start, end = draw.normal(size=(2, length))
        ends = itertools.product(range(length), repeat=2)
        pairs = {(i, j): start[i] + end[j] for i, j in ends if i <= j < i + longest}
        score, *span = best_span(start, end, longest)
        assert tuple(span) == max(pairs, key=pairs.get) and score == max(pairs.values())
    assert best_span(np.zeros(0), np.zeros(0), 5)[0] == -math.inf


def test_normalized_as_in_squad():
    assert normalized("The  U.S. (a) an-swer, Theatre!") == "us answer theatre"


# By hand, after the rules of SQuAD's own script.
@pytest.mark.parametrize(
    ("predicted", "true", "f1", "exact"),
    [
        ("the Norman kings", ["Norman kings", "kings"], 1.0, 1.0),
        ("kings of England", ["Norman kings", "the kings of all England"], 2 * 3 / (3 + 4), 0.0),
        ("king king", ["king"], 2 / 3, 0.0),
        ("", [], 1.0, 1.0),
        ("the", [], 1.0, 1.0),
        ("kings", [], 0.0, 0.0),
        ("", ["kings"], 0.0, 0.0),
        ("kings", ["the", "Kings."], 1.0, 1.0),
        ("Harold", ["kings"], 0.0, 0.0),
    ],
)
def test_squad_scores(predicted, true, f1, exact):
    assert squad_scores([predicted], [true]) == pytest.approx({"f1": f1, "exact": exact})
