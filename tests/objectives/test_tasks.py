"""The contract of every task, on its own sample; a new task in objectives/ is tested by this
unasked."""

import jax
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, required_head
from flaxformer_lite.data.rows import keep_table
from flaxformer_lite.data.table_splits import columns_of
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.registry import available, resolve, resolve_class
from tests.objectives import tables

TASKS = [
    name for name in available("objectives") if issubclass(resolve_class("objectives", name), Task)
]


@pytest.fixture(params=TASKS)
def task(request):
    made = resolve_class("objectives", request.param)()
    return made.fit([dict(row) for row in made.sample], {})


@pytest.fixture
def records(task):
    return tables.records(task, [dict(row) for row in task.sample], length=48)


def test_examples_are_of_one_shape_and_the_same_each_time(task, records):
    shapes = set()
    for row in range(len(records)):
        rngs = (np.random.default_rng(row) for _ in range(2))
        example, again = (task.make_example(records, row, rng) for rng in rngs)
        jax.tree.map(np.testing.assert_array_equal, example, again)
        assert all(x.dtype in (np.int32, np.float32) for x in jax.tree.leaves(example))
        shapes.add(str(jax.tree.map(lambda x: (np.shape(x), x.dtype.name), example)))
        ids = example["inputs"]["input_ids"]
        assert ids.min() >= 0 and ids.max() < records.tokenizer.vocab_size
        targets = jax.tree.leaves(example["targets"])
        assert any(np.any(x) for x in targets if x.dtype == np.float32), "nothing to learn"
    assert len(shapes) == 1


def test_every_row_of_the_sample_has_an_example_and_words(task, records):
    assert sorted(set(records.table_rows)) == list(range(len(records.rows)))
    assert all(task.show(records, i) for i in range(len(records)))
    assert records.pieces(0)[0].keys() == task.stored.keys() and len(records.sizes) == len(records)


def test_roles_are_of_the_sample_and_what_is_predicted_may_be_missing(task, records):
    # what a row may have besides, such as the tools of a conversation, need not be in the sample
    columns = [column for column in task.columns if not column.later]
    roles = {column.role for column in columns}
    assert roles == set(task.sample[0]) and len(columns) == len(roles)
    rows = [{**row, **{c.role: None for c in task.columns if c.predicted}} for row in task.sample]
    new = tables.records(task, rows, length=48)
    example, due = (task.make_example(of, 0, np.random.default_rng(0)) for of in (new, records))
    assert jax.tree.map(np.shape, example) == jax.tree.map(np.shape, due)


def test_a_column_that_a_table_lacks_is_named(task):
    for column in task.columns:
        others = tuple(each.role for each in task.columns if each is not column)
        if not column.optional:
            with pytest.raises(ConfigError, match=f"needs a column for '{column.role}'; name it"):
                columns_of(task, keep_table([dict.fromkeys(others)], "rows.jsonl"), "")


def test_the_head_is_one_that_families_of_each_skeleton_have(task):
    families = [resolve("models", name).Model for name in available("models")]
    for skeleton in task.skeletons:
        heads = [head for m in families if m.skeleton == skeleton for head in m.heads]
        assert required_head(task, skeleton) in heads, skeleton
