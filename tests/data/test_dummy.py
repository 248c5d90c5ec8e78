"""Blank text has the shapes of real text, for every objective."""

import jax
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.data import dummy
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.models import bert
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.tagging import Tagging
from flaxformer_lite.objectives.tables.task import Task
from tests.data.conftest import FAMILIES
from tests.training import tiny_runs


@pytest.mark.parametrize("family", sorted(tiny_runs.FAMILIES))
def test_blank_example_has_the_shapes_of_a_real_one(tmp_path, family):
    cfg = tiny_runs.config(tmp_path, family)
    data = open_dataset(cfg)

    def shapes(example):
        return jax.tree.map(lambda x: (x.shape, x.dtype), example)

    assert shapes(dummy.example(cfg)) == shapes(data.example(0, 0, 0))
    assert dummy.vocab_size(cfg) >= data.vocab_size


def test_every_objective_takes_blank_text(tmp_path):
    for name in registry.available("objectives"):
        objective = registry.resolve_class("objectives", name)()
        if isinstance(objective, Task):  # tests/objectives/test_tasks.py
            continue
        build = registry.resolve("models", FAMILIES[objective.skeletons[0]]).config
        model = build("tiny", head=objective.head)
        cfg = tiny_runs.config(tmp_path, model=model, objective=objective)
        assert dummy.example(cfg)["targets"]["labels"].ndim == 1, name


@pytest.mark.parametrize("family", sorted(tiny_runs.FAMILIES))
def test_a_batch_of_random_text_has_documents_side_by_side_and_no_two_rows_alike(tmp_path, family):
    cfg = tiny_runs.config(tmp_path, family)
    batch = dummy.batch(cfg)
    one = jax.tree.map(lambda x: (x.shape, x.dtype), dummy.example(cfg))
    assert jax.tree.map(lambda x: (x.shape[1:], x.dtype), batch) == one
    rows = batch["inputs"]["input_ids"]
    assert len({row.tobytes() for row in rows}) == len(rows) == cfg.train.batch_size
    assert batch["targets"]["weights"].sum() > len(rows)
    jax.tree.map(np.testing.assert_array_equal, batch, dummy.batch(cfg))


@pytest.mark.parametrize("task", [Classification(labels=("a", "b")), Tagging(labels=("O", "B-X"))])
def test_a_task_with_labels_other_than_its_samples_takes_its_texts(tmp_path, task):
    model = bert.config("tiny", head=task.head, **tiny_runs.SIZES)
    cfg = tiny_runs.config(tmp_path, "bert", objective=task, model=model)
    assert dummy.example(cfg)["inputs"]["input_ids"].shape == (cfg.data.length,)
