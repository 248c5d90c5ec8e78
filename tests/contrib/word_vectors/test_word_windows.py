"""The examples and the baseline of word windows, by loops over a small text."""

import dataclasses
import types

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.objectives.rows import row_ids

LETTERS = ("abcdefghij", "klmnopqrst", "uvwxyzäöüß", "0123456789", "ABCDEFGHIJ", "KLMNOPQRST")


@pytest.fixture
def windows(create, records_of):
    """windows(name, **options) -> the objective and its records."""

    def make(name="skip_gram", **options):
        objective = create(name, **{"subsample": 0.0, **options})
        return objective, records_of(objective)

    return make


def words(records, row):
    ids = np.concatenate(row_ids(records, row))
    return ids[np.isin(ids, records.tokenizer.ordinary_ids)].tolist()


@pytest.mark.parametrize("name", ["skip_gram", "cbow"])
def test_a_window_holds_its_word_and_neighbors_of_the_same_document(windows, generator, name):
    objective, records = windows(name, window=4)
    several = 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        ids = example["inputs"]["input_ids"]
        targets = example["targets"]
        known = words(records, row)
        count = len(known)
        assert ids[:count].tolist() == known and (ids[count:] == records.tokenizer.pad_id).all()
        assert not targets["weights"][count:].any() and not targets["end"][count:].any()
        several += len(row_ids(records, row)) > 1
        for t in range(count):
            begin = targets["begin"][t]
            end = targets["end"][t]
            assert begin <= t < end <= count and max(t - begin, end - 1 - t) <= 4
            others = end - begin - 1
            assert targets["weights"][t] == (others if name == "skip_gram" else others > 0)
            text = set(records.tokenizer.decode(ids[begin:end])) - {" ", "\ufffd"}
            # documents share no letter
            assert sum(bool(text & set(letters)) for letters in LETTERS) <= 1
    assert several > 3


def test_reaches_are_drawn_evenly_and_the_same_to_both_sides(windows, generator):
    objective, records = windows(window=3)
    within = (row for row in range(len(records)) if len(row_ids(records, row)) == 1)
    whole = next(row for row in within if len(words(records, row)) == 48)
    reaches = []
    for seed in range(200):
        targets = objective.make_example(records, whole, generator(seed))["targets"]
        left = np.arange(48) - targets["begin"]
        right = targets["end"] - 1 - np.arange(48)
        assert (left[3:-3] == right[3:-3]).all()
        reaches += left[3:-3].tolist()
    shares = np.bincount(reaches) / len(reaches)
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.02)


def test_frequent_words_are_dropped_at_the_papers_rate(windows, generator):
    rate = 4e-3
    objective, records = windows(subsample=rate)
    counts = records.counts
    kept = np.zeros(362)
    seen = np.zeros(362)
    for seed in range(30):
        for row in range(len(records)):
            example = objective.make_example(records, row, generator(seed, row))
            kept += np.bincount(example["inputs"]["input_ids"], minlength=362)
            seen += np.bincount(words(records, row), minlength=362)
    ordinary = records.tokenizer.ordinary_ids
    share = counts[ordinary] / counts[ordinary].sum()
    expected = np.minimum(1, np.sqrt(rate / np.maximum(share, 1e-12)))
    often = seen[ordinary] > 250
    assert often.sum() > 20 and expected[often].min() < 0.4
    found = kept[ordinary] / seen[ordinary].clip(1)
    np.testing.assert_allclose(found[often], expected[often], atol=0.1)


def test_noise_is_drawn_from_a_power_of_the_frequencies(windows, generator):
    objective, records = windows(noise_power=0.75, draws=4000)
    ordinary = records.tokenizer.ordinary_ids
    drawn = objective.make_example(records, 0, generator(1))["targets"]["noise"]
    assert set(drawn.tolist()) <= set(ordinary[records.counts[ordinary] > 0].tolist())
    expected = records.counts[ordinary] ** 0.75 / (records.counts[ordinary] ** 0.75).sum()
    shares = np.bincount(drawn, minlength=362)[ordinary] / 4000
    np.testing.assert_allclose(shares, expected, atol=0.012)


def test_counts_are_those_of_the_training_split(windows):
    _, records = windows()
    np.testing.assert_array_equal(
        records.counts, np.bincount(records.trained_on.ids, minlength=362)
    )
    held_out = dataclasses.replace(records, split="eval")
    np.testing.assert_array_equal(held_out.counts, records.counts)
    own = dataclasses.replace(records, trained_on=None)
    np.testing.assert_array_equal(own.counts, np.bincount(records.ids, minlength=362))


def test_the_baseline_is_the_least_loss_of_a_score_for_each_true_word(windows):
    """A word is true with weight p and noise with weight n, so no score has less than the entropy
    of p / (p + n)."""
    objective, records = windows("cbow", negatives=3)
    data = Dataset("eval", objective, {"train": records, "eval": records}, "")
    name, value = objective.baseline(data, objective.fit_baseline(data))
    true = np.zeros(362)
    noise = records.counts.astype(float)
    for targets in data.sample_targets("eval"):
        true += np.bincount(targets["labels"], targets["weights"], 362)
    noise[np.setdiff1d(np.arange(362), records.tokenizer.ordinary_ids)] = 0
    p = true / true.sum()
    n = noise**0.75 / (noise**0.75).sum()
    p, n = p[n > 0], 3 * n[n > 0] * (1 - p[n > 0])
    least = -(p * np.log(p / (p + n))).sum() - (n * np.log(n / (p + n))).sum()
    assert name == "word frequencies" and least <= value == pytest.approx(least, rel=0.01)


def test_a_text_without_a_word_of_the_vocabulary(windows, generator):
    objective, records = windows()
    ends = 9 * (np.arange(362) == records.tokenizer.eos_id)
    blank = dataclasses.replace(records, trained_on=types.SimpleNamespace(count=lambda size: ends))
    with pytest.raises(ConfigError, match=r"no word.*lower.*min_count"):
        objective.make_example(blank, 0, generator())


@pytest.mark.parametrize(
    ("option", "value"), [("window", 0), ("negatives", 0), ("draws", -1), ("subsample", -0.1)]
)
def test_options_out_of_range(create, option, value):
    with pytest.raises(ConfigError, match=f"{option}={value}: must"):
        create("cbow", **{option: value})
