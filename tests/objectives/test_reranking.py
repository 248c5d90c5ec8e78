import random

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.tables.reranking import Reranking
from flaxformer_lite.runs.start import setup
from tests.objectives import learned

ROWS = [
    {"query": "a", "passage": "b", "label": 0},
    {"query": "a", "passage": "a c", "label": 1},
    {"query": "d", "passage": "e", "label": 1},
    {"query": "d", "passage": "f", "label": 0.2},
    {"query": "g", "passage": "h", "label": 0},
]


def test_pairs_are_joined_and_the_loss_is_the_entropy_of_one_logit(tmp_path):
    task, records = learned.encoded(Reranking(), ROWS, tmp_path, length=8)
    example = task.make_example(records, 1, None)
    assert (
        example["inputs"]["attention_mask"].sum() == 6
        and example["inputs"]["token_type_ids"].sum() == 3
    )
    loss = task.loss(
        jnp.asarray([2.0, -1.0]),
        {"label": jnp.asarray([1.0, 0.25]), "weights": jnp.ones(2)},
        chunks=1,
    )
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    assert float(loss.mean()) == pytest.approx(
        (soft(-2.0) + 0.25 * soft(1.0) + 0.75 * soft(-1.0)) / 2, rel=1e-6
    )


def test_scores_are_of_the_first_right_passage_of_each_query(tmp_path):
    task, records = learned.encoded(Reranking(), ROWS, tmp_path, length=8)
    data = type("Data", (), {"records": records, "splits": {"train": records, "eval": records}})
    found = task.scores({"logits": np.asarray([2.0, 1.0, 5.0, 4.0, 0.0])}, np.arange(5), data)
    recalls = {"recall_1": 0.5, "recall_10": 1.0}
    gain = (1 / np.log2(3) + 1) / 2
    assert found == {"mrr": 0.75, **recalls, "mrr_10": 0.75, "ndcg_10": pytest.approx(gain)}
    # the second query has no word in common: a tie
    assert task.baseline(data, task.fit_baseline(data)) == (
        "tf-idf",
        0.75,
    )
    assert task.decode({"logits": np.asarray([0.0])}, records) == [{"prediction": 0.5}]


def matches(count):
    """A query names a word, and the first of its four passages holds the partner of that word."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        words = draw.sample(range(4), 4)
        query = f"q{words[0]} n{number}"
        rows += [
            {"query": query, "passage": f"p{word}", "label": int(word == words[0])}
            for word in words
        ]
    return rows


@pytest.mark.parametrize("family", ["bert", pytest.param("gpt2", marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_learns_which_passage_answers(tmp_path, family):
    found, baseline, workdir = learned.learn(
        tmp_path, Reranking(), matches(100), family, length=8, steps=200
    )
    assert found["mrr"] > baseline + 0.3
    told = np.asarray(
        [one["prediction"] for one in learned.predict(workdir, tmp_path / "eval.jsonl")]
    )
    right = np.asarray([row["label"] for row in matches(100)[-len(told) :]]) > 0
    assert told[right].mean() > told[~right].mean() + 0.1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"passage": "a", "label": 1}, "needs a column for 'query'"),
        ({"query": "a", "label": 1}, "needs a column for 'passage'"),
        ({"query": "a", "passage": "b"}, "needs a column for 'label'"),
        ({"query": "a", "passage": "b", "label": 2}, "row 1: label=2 must be from 0 to 1"),
        ({"query": "a", "passage": "b", "label": "yes"}, "row 1: label='yes' is not a number"),
        ({"query": "a", "passage": "b", "label": None}, "row 1 has no label"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(tmp_path, row, message):
    cfg = learned.config(tmp_path, Reranking(), ROWS * 2)
    learned.write(tmp_path / "train.jsonl", [row])
    with pytest.raises(ConfigError, match=message):
        setup.prepare_experiment(cfg)
