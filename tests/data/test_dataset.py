import itertools
import threading
import weakref

import jax
import numpy as np
import pytest
import tokenizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.dataset import Dataset, open_dataset
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.objectives.text.text_objective import (
    bytes_per_target,
    label_counts,
    unigram_loss,
)
from flaxformer_lite.registry import available, resolve_class
from tests.marks import daily


def take(iterator, count):
    return list(itertools.islice(iterator, count))


@pytest.mark.parametrize(
    "objective, hashed",
    [
        ("causal_lm", "2f68f15be056e06f"),
        ("masked_lm", "7188ac6063be3d9b"),
        ("span_corruption", "d83ee4a211481960"),
        ("ul2", "96be8a34088a3e5e"),
    ],
)
def test_the_fingerprint_of_a_run_stays(experiment, objective, hashed):
    """Another one would refuse to continue all runs that were begun before: it follows the order of
    an objective's fields."""
    assert open_dataset(experiment(objective, length=64)).fingerprint == hashed


def rows_of(batch):
    """Each example of a batch as bytes, so that examples can be counted and compared."""
    leaves = jax.tree.leaves(batch)
    return [
        b"".join(np.asarray(leaf[r]).tobytes() for leaf in leaves) for r in range(len(leaves[0]))
    ]


def global_batches(data, batch_size, steps, count, start=0, seed=5):
    """Batches put together from all processes, each a list of examples."""
    options = {"batch_size": batch_size, "seed": seed, "start_step": start}
    parts = [
        take(data.batches(rows=rows, **options), steps)
        for rows in np.split(np.arange(batch_size), count)
    ]
    return [[row for batch in step for row in rows_of(batch)] for step in zip(*parts, strict=True)]


class Numbers:
    """An objective whose example is the number of its row and what the generator gave."""

    columns = ("text",)
    needs = ()

    def make_example(self, records, index, rng):
        drawn = rng.integers(0, 2**31, dtype=np.int32)
        return {
            "inputs": {"row": np.int32(index)},
            "targets": {"drawn": drawn, "weights": np.float32(1)},
        }


@pytest.fixture
def numbers(experiment):
    splits = {"train": range(25), "eval": range(10)}
    return {split: Dataset(split, Numbers(), splits, "print") for split in splits}


@pytest.mark.parametrize("count", daily([1, 2, 3, 4], [3]))
def test_each_example_once_an_epoch_whatever_the_processes(numbers, count):
    epochs = 24
    steps = 25 * epochs // 12
    own = np.split(np.arange(12), count)
    parts = [take(numbers["train"].batches(batch_size=12, seed=5, rows=r), steps) for r in own]
    ordered = [part[k]["inputs"]["row"] for k in range(steps) for part in parts]
    ordered = np.concatenate(ordered).reshape(epochs, 25)
    assert (np.sort(ordered, axis=1) == np.arange(25)).all(), "each epoch is a permutation"
    assert len({tuple(epoch) for epoch in ordered.tolist()}) == epochs, "shuffled anew each epoch"


@pytest.mark.parametrize("count", daily([1, 2, 3, 4], [3]))
def test_resumed_at_any_step_with_any_number_of_processes(numbers, count):
    whole = global_batches(numbers["train"], 12, 20, 1)
    assert global_batches(numbers["train"], 12, 13, count, start=7) == whole[7:]


def test_the_seed_decides_the_order_and_the_noise(numbers):
    first, again, other = (
        take(numbers["train"].batches(batch_size=25, seed=seed), 1)[0] for seed in (5, 5, 6)
    )
    assert rows_of(first) == rows_of(again)
    assert first["inputs"]["row"].tolist() != other["inputs"]["row"].tolist()
    assert (first["targets"]["drawn"] != other["targets"]["drawn"]).all()


def test_randomness_differs_between_epochs(numbers):
    (batch,) = take(numbers["train"].batches(batch_size=100), 1)
    assert len(np.unique(batch["targets"]["drawn"])) == 100


@pytest.mark.parametrize("count", [1, 2, 4])
def test_held_out_once_through_and_filled_up_with_weightless_examples(numbers, count):
    own = np.split(np.arange(4), count)
    parts = [list(numbers["eval"].batches(batch_size=4, seed=9, rows=rows)) for rows in own]
    assert [len(part) for part in parts] == [3] * count
    batches = list(itertools.chain(*parts))
    rows = np.concatenate([batch["inputs"]["row"] for batch in batches])
    weights = np.concatenate([batch["targets"]["weights"] for batch in batches])
    assert np.sort(rows[weights > 0]).tolist() == list(range(10)) and weights.sum() == 10


def test_held_out_batches_do_not_depend_on_the_seed(numbers):
    first, second = (
        [rows_of(b) for b in numbers["eval"].batches(batch_size=4, seed=seed)] for seed in (1, 2)
    )
    assert first == second


def test_any_rows_in_any_order(numbers):
    (whole,) = take(numbers["train"].batches(batch_size=12), 1)
    (some,) = take(numbers["train"].batches(batch_size=12, rows=[7, 2, 3]), 1)
    assert rows_of(some) == [rows_of(whole)[row] for row in (7, 2, 3)]


def test_placed_ahead_of_need_by_a_thread_that_ends_when_closed(numbers):
    threads = []

    def place(batch):
        threads.append(threading.current_thread())
        return {"placed": batch}

    ahead = numbers["train"].batches(batch_size=4, start_step=3, place=place, ahead=2)
    placed = take(ahead, 5)
    ahead.close()
    assert threading.current_thread() not in threads and not threads[0].is_alive()
    assert len(threads) <= 5 + 2 + 1, "it runs ahead no further than told"
    for batch, due in zip(
        placed, take(numbers["train"].batches(batch_size=4, start_step=3), 5), strict=True
    ):
        assert rows_of(batch["placed"]) == rows_of(due)


def of_text(name):
    cls = resolve_class("objectives", name)
    return cls.columns == ("text",) and not issubclass(cls, Task)


# Of one piece, of masked ones, of pairs and of words.
DAILY = ("causal_lm", "masked_lm", "span_corruption", "skip_gram")


@pytest.mark.parametrize("name", daily(filter(of_text, available("objectives")), DAILY))
def test_every_objective_end_to_end(experiment, name):
    data = open_dataset(experiment(name), "train")
    first = take(data.batches(batch_size=8, seed=3), 3)
    (again,) = take(data.batches(batch_size=8, seed=3, start_step=2), 1)
    assert rows_of(first[2]) == rows_of(again)
    assert {len(x) for x in first[0]["inputs"].values()} == {8}
    held_out = open_dataset(experiment(name), "eval")
    assert held_out.fingerprint == data.fingerprint
    assert len(list(held_out.batches(batch_size=8))) == -(-held_out.num_examples // 8)
    assert 0 < unigram_loss(held_out, label_counts(held_out, "train")) < np.log(data.vocab_size)


def test_unigram_loss_and_bytes_per_token_by_hand(experiment):
    data = open_dataset(experiment())
    held_out = open_dataset(experiment(), "eval")

    def labels(targets):
        return targets["labels"][targets["weights"] > 0]

    counts = np.ones(data.vocab_size)
    for row in range(data.num_examples):
        np.add.at(counts, labels(data.example(row, 0, 0)["targets"]), 1)
    told = np.concatenate([labels(b["targets"]) for b in held_out.batches(batch_size=4)])
    seen = label_counts(held_out, "train")
    assert unigram_loss(held_out, seen) == pytest.approx(
        -np.log(counts / counts.sum())[told].mean()
    )
    assert unigram_loss(data, label_counts(data, "train")) == unigram_loss(held_out, seen)
    # of the bytes tokenizer: one byte a token, none for the end
    assert bytes_per_target(data) == pytest.approx((told != data.tokenizer.eos_id).mean())


def test_bytes_per_token_of_a_trained_tokenizer(experiment):
    cfg = experiment(tokenizer="byte_bpe")
    data = open_dataset(cfg, "eval")
    tokens = data.records.column("ids")
    text = data.tokenizer.decode(np.asarray(tokens))
    assert bytes_per_target(data) == pytest.approx(len(text.encode()) / len(tokens), rel=0.02)


@pytest.mark.nightly
def test_built_in_text(experiment):
    data = open_dataset(experiment(path="", corpus="stdlib_code", length=128), "train")
    (batch,) = take(data.batches(batch_size=8), 1)
    assert data.num_examples > 30_000
    text = data.tokenizer.decode(batch["inputs"]["input_ids"].reshape(-1))
    assert "    " in text and text.isprintable() is False


@pytest.mark.parametrize(
    "cfg, message",
    [
        ({"vocab_size": 256}, r"model\.vocab_size=256: the tokenizer has 362; set model\.vocab_si"),
        ({"length": 10**6}, r"less than.*data\.length=1000000"),
        ({"tokenizer": "byte_bpe", "tokens": 100}, r"vocab_size=100: byte_bpe needs at least 362"),
        ({"path": "/no/such/file"}, r"data\.path='/no/such/file':.*no such file"),
        ({"objective": "seq2seq"}, r"documents\.jsonl:1: no text under 'source'"),
        ({"objective": "masked_lm", "length": 4}, r"data\.length=4: too short for masked_lm"),
    ],
)
def test_what_cannot_work(experiment, cfg, message):
    with pytest.raises(ConfigError, match=message):
        open_dataset(experiment(**cfg))


def test_a_vocabulary_without_the_tokens_an_objective_needs(experiment, tmp_path):
    vocabulary = {"<unk>": 0, "</s>": 1}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.save(str(tmp_path / "t.json"))
    with pytest.raises(ConfigError, match=r"has no cls_id, mask_id, which masked_lm needs"):
        open_dataset(experiment("masked_lm", tokenizer_path=str(tmp_path / "t.json")))


def test_no_such_split(experiment):
    with pytest.raises(ValueError, match="split='test': must be train or eval"):
        open_dataset(experiment(), "test")


def test_batches_that_a_script_leaves_open_end_before_grain_does(experiment):
    batches = open_dataset(experiment("causal_lm", length=64)).batches(batch_size=2, ahead=1)
    next(batches)
    theirs = weakref.ref(batches._open[0])
    at_exit = batches._close
    assert at_exit.atexit and at_exit.alive
    at_exit()
    assert theirs() is None
    assert next(batches, None) is None
