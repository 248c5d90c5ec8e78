import numpy as np
import pytest
import scipy.sparse

from flaxformer_lite.objectives.tables import retrieval

# Questions 0 and 1 (twice); answers 10, 11, 12; the second row has another right answer, the third.
PAIRS = np.asarray([[0, 10], [1, 11], [1, 12]])
QUESTIONS = np.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
ANSWERS = np.asarray([[0.5, 0.2], [0.1, 0.3], [0.6, 0.9]])


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix])
def test_ranks_leave_out_other_right_answers(form, monkeypatch):
    monkeypatch.setattr(retrieval, "QUESTIONS_AT_ONCE", 2)
    assert retrieval.ranks(form(QUESTIONS), form(ANSWERS), PAIRS).tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("pairs", "due"),
    [
        ([[0, 10], [1, 11], [2, 12]], [3, 3, 3]),
        ([[11, 10], [1, 11], [2, 12]], [2, 3, 3]),
        ([[0, 10], [1, 10], [2, 10]], [1, 1, 1]),
    ],
)
def test_ties_count_against_a_row_and_the_question_itself_is_no_answer(pairs, due):
    same = np.ones((3, 2))
    assert retrieval.ranks(same, same, np.asarray(pairs)).tolist() == due


def test_scores_of_ranks():
    found = retrieval.scores(np.asarray([1, 2, 20, 10]))
    mrr = pytest.approx((1 + 0.5 + 0.05 + 0.1) / 4)
    assert found == {"mrr": mrr, "recall_1": 0.25, "recall_10": 0.75}


def test_texts_with_the_same_words_are_alike():
    first, second = retrieval.same_words(["a cat", "a dog"], ["cat food", "the dog runs"])
    assert retrieval.ranks(first, second, np.asarray([[0, 2], [1, 3]])).tolist() == [1, 1]
    assert retrieval.same_words(["?"], ["!"]) is None
