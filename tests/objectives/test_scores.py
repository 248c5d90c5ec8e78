"""Scores computed here are those of scikit-learn and seqeval, on random predictions."""

import warnings

import numpy as np
import pytest

from flaxformer_lite.objectives.tables import scores
from flaxformer_lite.objectives.tables.breakdown import (
    class_scores,
    confusion_matrix,
    confusion_table,
)

TAGS = ("O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B", "B-x-y", "I-x-y")


def test_entities_are_those_of_seqeval():
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    draw = np.random.default_rng(0)
    for _ in range(300):
        lengths = draw.integers(1, 9, 4)
        true, predicted = ([[*draw.choice(TAGS, n)] for n in lengths] for _ in range(2))
        assert [scores.spans(tags) for tags in true] == [get_entities(tags) for tags in true]
        want = precision_recall_fscore_support(true, predicted, average="micro", zero_division=0)
        found = scores.entities(predicted, true)
        np.testing.assert_allclose([*found.values()], want[:3], atol=1e-12)
        each = precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
        by_kind = scores.entity_scores(predicted, true)
        np.testing.assert_allclose(class_scores(*np.asarray([*by_kind.values()]).T), each)
    assert scores.entities([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


@pytest.fixture(scope="module")
def metrics():
    """Scikit-learn's; imported here, as every worker collects all tests, and one runs these."""
    from sklearn import metrics

    return metrics


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_of_classes_are_those_of_scikit_learn(classes, metrics):
    draw = np.random.default_rng(classes)
    for used in (*range(1, classes + 1), classes, classes):
        true, predicted = draw.integers(0, used, (2, 12))
        found = scores.single_label(predicted, true, classes=classes)
        average = "binary" if classes == 2 else "macro"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one class only
            want = metrics.f1_score(true, predicted, average=average, zero_division=0)
            matthews = metrics.matthews_corrcoef(true, predicted)
        assert found == {"f1": pytest.approx(want), "matthews": pytest.approx(matthews)}
        counts = confusion_matrix(predicted, true, classes)
        each = class_scores(counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1))
        labels = range(classes)
        score = metrics.precision_recall_fscore_support
        np.testing.assert_allclose(each, score(true, predicted, labels=labels, zero_division=0))
        want = metrics.confusion_matrix(true, predicted, labels=labels)
        np.testing.assert_array_equal(counts.toarray(), want)


def test_scores_of_several_labels_are_those_of_scikit_learn(metrics):
    true, predicted = np.random.default_rng(0).random((2, 20, 4)) > [0.5, 0.2, 0.9, 1.0]
    found = scores.multiple_labels(predicted, true)
    for name in ("micro", "macro"):
        want = metrics.f1_score(true, predicted, average=name, zero_division=0)
        assert found[f"f1_{name}"] == pytest.approx(want)


def test_the_best_threshold_of_each_label_is_that_of_all_cuts():
    draw = np.random.default_rng(1)
    shares = draw.integers(1, 9, (30, 3)) / 10  # with equal ones
    true = draw.random((30, 3)) < shares
    true[:, 2] = False
    thresholds, f1 = scores.best_thresholds(shares, true)
    cuts = np.arange(0.05, 1, 0.1)
    for label in range(3):
        found = [scores.micro_f1(shares[:, label] > cut, true[:, label]) for cut in cuts]
        at_best = scores.micro_f1(shares[:, label] > thresholds[label], true[:, label])
        assert f1[label] == pytest.approx(max(found)) == pytest.approx(at_best)


def test_thousands_of_classes_take_no_square_of_them():
    """Their most frequent confusions, too."""
    classes = 200_000
    rng = np.random.default_rng(0)
    true = rng.integers(0, classes, 1000)
    predicted = np.where(rng.random(1000) < 0.5, true, 7)
    predicted[:3] = 9
    true[:3] = 5
    counts = confusion_matrix(predicted, true, classes)
    assert counts.nnz <= 1000 and counts[5, 9] == 3
    table = confusion_table([str(i) for i in range(classes)], counts)
    assert table.rows[0][:3] == ["5", "9", 3] and len(table.rows) == 20
    assert scores.single_label(predicted, true, classes=classes)["matthews"] > 0.3
