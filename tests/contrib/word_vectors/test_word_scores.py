"""Scores of analogies and pairs by hand."""

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.word_vectors.word_scores import score_analogies, score_pairs
from tests.pretrained.test_word_vectors import PLACES, made

QUESTIONS = """: capitals
Paris France London England
london england PARIS france
paris france rome italy
: others
king queen paris london
"""


@pytest.fixture
def write(tmp_path):
    def file(text):
        (tmp_path / "file.txt").write_text(text)
        return tmp_path / "file.txt"

    return file


def test_analogies_by_section(write):
    found = score_analogies(made(PLACES), write(QUESTIONS))
    assert found == [("capitals", 3, 2, 2), ("others", 1, 1, 0)]


def test_each_answer_is_that_of_the_analogy_itself(write):
    draw = np.random.default_rng(0)
    vectors = made({f"w{i}": draw.normal(size=3) for i in range(30)})
    rows = [draw.choice(30, 4, replace=False) for _ in range(60)]
    found = [vectors.analogy(*(f"w{i}" for i in row[:3]), 1)[0][0] for row in rows]
    right = sum(word == f"w{row[3]}" for word, row in zip(found, rows, strict=True))
    text = "\n".join(" ".join(f"W{i}" for i in row) for row in rows)
    assert score_analogies(vectors, write(text)) == [("", 60, 60, right)] and right


def test_a_word_in_another_case_is_right_and_never_the_answer_to_itself(write):
    vectors = made({**PLACES, "England": (9, 0, 9), "LONDON": PLACES["london"]})
    assert score_analogies(vectors, write("paris france london England"))[0].right == 1


@pytest.mark.parametrize("between", ["\t", ","])
def test_correlations_of_pairs_whose_words_are_known(write, between):
    pairs = {"paris calais": 9, "London England": 8.5, "king Queen": 10, "king paris": 1, "a b": 5}
    lines = [[*words.split(), str(score)] for words, score in pairs.items()]
    lines = [
        "# a comment",
        *(between.join(line) for line in [["Word 1", "Word 2", "mean"], *lines]),
    ]
    vectors = made(PLACES)
    found = score_pairs(vectors, write("\n".join(lines)))
    own = []
    for words in [*pairs][:4]:
        a, b = map(vectors.vector, words.split())
        own.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert (found["total"], found["known"]) == (5, 4)
    ranks = [np.argsort(np.argsort(scores)) for scores in (own, [9, 8.5, 10, 1])]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_no_known_pair(write):
    assert score_pairs(made(PLACES), write("a\tb\t3\n")) == {"total": 1, "known": 0}


@pytest.mark.parametrize(
    ("score", "text", "message"),
    [
        (score_analogies, ": family\nking queen\n", r"file\.txt:2: 'king queen':.*section"),
        (score_analogies, ": family\n\n", r"no question;.*four words"),
        (score_pairs, "king\tqueen\t9\nking\tqueen\n", r"file\.txt:2: .*must.*number"),
        (score_pairs, "king\tqueen\t9\nking\tqueen\tmuch\n", r"file\.txt:2: .*must.*number"),
        (score_pairs, "a\tb\tc\t9\n", r"file\.txt:1: .*must.*number"),
        (score_pairs, "# nothing\n", r"no pair;.*two words"),
    ],
)
def test_files_of_another_form(write, score, text, message):
    with pytest.raises(ConfigError, match=message):
        score(made(PLACES), write(text))
