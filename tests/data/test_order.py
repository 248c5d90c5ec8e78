"""The endless stream of examples: each epoch of a text is packed and shuffled anew, and a run
resumes anywhere in it."""

import dataclasses
import itertools
from itertools import pairwise

import grain
import numpy as np
import pytest

from flaxformer_lite.data import order
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.documents import open_corpus
from tests.marks import daily

SIZES = 25, 27, 24


@pytest.mark.parametrize("num_plans", [1, 2, 3])
def test_each_row_of_each_plan_once_in_its_epochs(num_plans):
    find = order.endless_finder(lambda number: range(SIZES[number]), num_plans, seed=3)
    position = 0
    orders = []
    for epoch in range(7):
        size = SIZES[epoch % num_plans]
        found = [find(position + place) for place in range(size)]
        assert {len(records) for records, _ in found} == {size}
        assert sorted(row for _, row in found) == list(range(size))
        orders.append(tuple(row for _, row in found))
        position += size
    assert len(set(orders)) == 7, "shuffled anew each epoch"


def test_found_without_state():
    def finder():
        return order.endless_finder(lambda number: range(SIZES[number]), 3, seed=3)

    places = range(0, 4000, 397)
    once = [finder()(place) for place in places]
    find = finder()
    assert [find(place) for place in reversed(places)] == once[::-1]


@pytest.mark.parametrize("size", [7, order.SHORT])
def test_the_order_is_grains(size):
    seed = 2**32 + 5
    find = order.endless_finder(lambda number: range(size), 1, seed)
    due = grain.MapDataset.range(size).seed(5).shuffle().repeat()
    places = (0, size - 1, size, 2 * size + 1)
    assert [find(place)[1] for place in places] == [due[place] for place in places]


def test_no_plan_is_asked_for_before_its_epoch():
    asked = []
    open_plan = lambda number: asked.append(number) or range(SIZES[number])  # noqa: E731
    find = order.endless_finder(open_plan, 3, seed=3)
    find(24)
    assert set(asked) == {0}
    find(25)
    assert set(asked) == {0, 1}


class Places:
    """Stands in for an objective: an example tells where the pieces of its row begin and how long
    they are."""

    def __init__(self, num_plans):
        self.num_plans = num_plans

    def make_example(self, records, index, rng):
        pieces = slice(*records.plan.first[index : index + 2])
        at, length = (
            np.resize(array[pieces], 40) for array in (records.plan.start, records.plan.length)
        )
        return {
            "inputs": {"at": at, "length": length * (np.arange(40) < pieces.stop - pieces.start)},
            "targets": {},
        }


def placed(cfg, steps, hosts=1, start=0, size=12):
    """Returns rows of an experiment's stream as tuples of (start, length), put together from those
    of several hosts."""
    data = open_dataset(cfg)
    data = dataclasses.replace(data, objective=Places(data.objective.num_plans))
    own = [
        data.batches(batch_size=size, start_step=start, rows=r)
        for r in np.array_split(np.arange(size), hosts)
    ]
    rows = []
    for step in itertools.islice(zip(*own, strict=True), steps):
        for inputs in (batch["inputs"] for batch in step):
            pairs = np.stack([inputs["at"], inputs["length"]], axis=-1).tolist()
            rows += [tuple((at, length) for at, length in row if length) for row in pairs]
    return rows


def sizes(cfg, count):
    data = open_dataset(cfg)
    return [len(data.sources[""].open_plan(number)) for number in range(count)]


@pytest.mark.parametrize(
    "name", daily(["causal_lm", "masked_lm", "span_corruption"], ["causal_lm"])
)
def test_every_epoch_of_a_text_has_each_token_once_in_other_rows(experiment, name):
    cfg = experiment(name, length=64)
    ends = np.cumsum([0, *sizes(cfg, 4)])
    rows = placed(cfg, -(-ends[-1] // 12))
    tokens = open_corpus(cfg.data, ("text",)).tokens["train"]
    due = np.ones(len(tokens.ids), int)
    # the token that ends a row or a document is no label, or no text
    shared = int(name == "causal_lm")
    due[tokens.offsets[:-1] if shared else tokens.offsets[1:] - 1] = 0
    for begin, end in pairwise(ends):
        seen = np.zeros_like(due)
        for at, length in itertools.chain.from_iterable(rows[begin:end]):
            seen[at + shared : at + length] += 1
        assert (seen == due).all()
    cut = [
        {row for row in rows[begin:end] if sum(n for _, n in row) > 60}
        for begin, end in pairwise(ends)
    ]
    for first, second in itertools.combinations(cut, 2):
        assert len(first & second) < (0.02 if shared else 0.4) * len(first), "packed anew"
    assert max(abs(np.diff(ends) / ends[1] - 1)) < 0.02, "as many rows, or nearly"


@pytest.mark.parametrize("hosts", daily([1, 2, 4, 8], [4]))
def test_resumed_in_the_middle_of_an_epoch_by_any_number_of_hosts(experiment, hosts):
    cfg = experiment(length=512)
    steps = sum(sizes(cfg, 3)) // 12
    whole = placed(cfg, steps)
    middle = sizes(cfg, 1)[0] * 3 // 2 // 12
    assert placed(cfg, steps - middle, hosts, start=middle) == whole[middle * 12 :]


def test_plans_of_the_epochs_to_come_are_made_at_the_start(experiment, tmp_path):
    def made(**train):
        cfg = experiment(length=64)
        open_dataset(dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, **train)))
        return len(list((tmp_path / "cache").glob("rows-*-train*")))

    assert [made(steps=1), made(steps=0, epochs=2.5), made(steps=0, epochs=100)] == [1, 3, 16]
