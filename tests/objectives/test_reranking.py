import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.objectives.tables.reranking import Reranking
from tests.objectives import learned, tables

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
    assert example["inputs"]["attention_mask"].sum() == 6
    assert example["inputs"]["token_type_ids"].sum() == 3
    targets = {"label": jnp.asarray([1.0, 0.25]), "weights": jnp.ones(2)}
    loss = task.loss(jnp.asarray([2.0, -1.0]), targets, chunks=1)
    first, right, wrong = np.log1p(np.exp([-2.0, 1.0, -1.0]))
    due = (first + 0.25 * right + 0.75 * wrong) / 2
    assert float(loss.mean()) == pytest.approx(due, rel=1e-6)


def test_scores_are_of_the_first_right_passage_of_each_query(tmp_path):
    task, records = learned.encoded(Reranking(), ROWS, tmp_path, length=8)
    data = tables.data_of(records)
    found = task.scores({"logits": np.asarray([2.0, 1.0, 5.0, 4.0, 0.0])}, np.arange(5), data)
    recalls = {"recall_1": 0.5, "recall_10": 1.0}
    gain = (1 / np.log2(3) + 1) / 2
    assert found == {"mrr": 0.75, **recalls, "mrr_10": 0.75, "ndcg_10": pytest.approx(gain)}
    # the second query has no word in common: a tie
    assert task.baseline(data, task.fit_baseline(data)) == ("tf-idf", 0.75)
    assert task.decode({"logits": np.asarray([0.0])}, records) == [{"prediction": 0.5}]
