import functools
import math

import jax
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.skeletons.outputs import Features
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.objectives.text.masked_lm import _whole_words


def restored(example):
    """The ids before masking."""
    ids = example["inputs"]["input_ids"].copy()
    counts = example["targets"]["weights"] > 0
    ids[example["inputs"]["masked_positions"][counts]] = example["targets"]["labels"][counts]
    return ids


@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_labels_are_what_was_hidden(create, records_of, generator, unit):
    objective = create("masked_lm", unit=unit)
    records = records_of(objective, tokenizer="byte_bpe")
    tok = records.tokenizer
    for row in range(len(records)):
        expected = []
        for piece in row_ids(records, row):
            expected += [tok.cls_id, *piece.tolist(), tok.sep_id]
        example = objective.make_example(records, row, generator(row))
        ids = restored(example)
        assert ids[: len(expected)].tolist() == expected
        assert (ids[len(expected) :] == tok.pad_id).all()
        chosen = example["inputs"]["masked_positions"][example["targets"]["weights"] > 0]
        assert (np.diff(chosen) > 0).all()
        assert not np.isin(ids[chosen], [tok.cls_id, tok.sep_id, tok.pad_id]).any()


def test_rates(create, records_of, generator):
    objective = create("masked_lm")
    records = records_of(objective, length=128)
    tok = records.tokenizer
    hidden = kept = swapped = chosen = candidates = 0
    for n in range(2000):
        example = objective.make_example(records, n % len(records), generator(n))
        before = restored(example)
        after = example["inputs"]["input_ids"]
        at = example["inputs"]["masked_positions"][example["targets"]["weights"] > 0]
        candidates += np.isin(before, tok.ordinary_ids).sum()
        chosen += len(at)
        hidden += (after[at] == tok.mask_id).sum()
        kept += (after[at] == before[at]).sum()
        swapped += ((after[at] != before[at]) & (after[at] != tok.mask_id)).sum()
        elsewhere = np.setdiff1d(np.arange(len(after)), at)
        np.testing.assert_array_equal(after[elsewhere], before[elsewhere])
        assert len(at) == max(1, round(np.isin(before, tok.ordinary_ids).sum() * 0.15))
    assert hidden / chosen == pytest.approx(0.8, abs=0.01)
    assert swapped / chosen == pytest.approx(0.1, abs=0.01)
    assert kept / chosen == pytest.approx(0.1, abs=0.01)
    assert chosen / candidates == pytest.approx(0.15, abs=0.005)


def test_masks_are_dynamic_and_fair(create, records_of, generator):
    objective = create("masked_lm")
    records = records_of(objective)
    row = max(range(len(records)), key=lambda r: len(row_ids(records, r)[0]))
    times = np.zeros(records.length)
    for n in range(2000):
        example = objective.make_example(records, row, generator(n))
        times[example["inputs"]["masked_positions"][example["targets"]["weights"] > 0]] += 1
    rates = times[np.isin(restored(example), records.tokenizer.ordinary_ids)] / 2000
    assert rates.min() > 0.1 and rates.max() < 0.2


def test_whole_words(create, records_of, generator):
    objective = create("masked_lm", unit="whole_word", rate=0.3)
    records = records_of(objective, tokenizer="bytes")
    words = 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        ids = restored(example)
        chosen = example["inputs"]["masked_positions"][example["targets"]["weights"] > 0]
        starts = records.tokenizer.starts_word(ids)
        word = np.cumsum(starts)
        ordinary = np.isin(ids, records.tokenizer.ordinary_ids)
        budget = max(1, round(ordinary.sum() * 0.3))
        assert 1 <= len(chosen) <= budget
        for number in np.unique(word[chosen]):
            whole = np.flatnonzero((word == number) & ordinary)
            if len(whole) > budget:
                assert len(chosen) == 1, "a word longer than the budget"
            else:
                assert np.isin(whole, chosen).all()
                words += len(whole) > 1
    assert words > 50


def test_a_word_that_does_not_fit_gives_way_to_shorter_ones(generator):
    starts = np.asarray([1, 0, 0, 1, 0, 0, 1, 1, 1, 1], bool)  # words of 3, 3, 1, 1, 1, 1 tokens
    for seed in range(50):
        assert len(_whole_words(np.arange(10, 20), starts, 4, generator(seed))) == 4


def pairs(create, records_of, generator, kind, count):
    objective = create("masked_lm", pairs=kind)
    records = records_of(objective, length=40)
    tok = records.tokenizer
    for n in range(count):
        example = objective.make_example(records, n % len(records), generator(n))
        ids = restored(example)
        types = example["inputs"]["token_type_ids"]
        (piece,) = row_ids(records, n % len(records))
        first, second = np.flatnonzero(ids == tok.sep_id)
        assert ids[0] == tok.cls_id and (ids[second + 1 :] == tok.pad_id).all()
        rest = [0] * (len(ids) - second - 1)
        assert types.tolist() == [0] * (first + 1) + [1] * (second - first) + rest
        assert example["inputs"]["attention_mask"].tolist() == [1] * (second + 1) + rest
        a = ids[1:first].tolist()
        b = ids[first + 1 : second].tolist()
        assert a and b
        yield piece.tolist(), a, b, int(example["targets"]["next_sentence_label"])


def test_next_sentence(create, records_of, generator):
    labels = []
    as_long = []
    for piece, a, b, label in pairs(create, records_of, generator, "next_sentence", 600):
        assert piece[: len(a)] == a
        assert (a + b == piece) == (label == 0) or len(b) < 3
        assert len(a + b) <= len(piece)
        labels.append(label)
        as_long.append(len(a + b) == len(piece))
    assert 0.43 < np.mean(labels) < 0.57
    assert np.mean(as_long) > 0.97, "the length of a row tells its label"


def test_sentence_order(create, records_of, generator):
    labels = []
    for piece, a, b, label in pairs(create, records_of, generator, "sentence_order", 600):
        assert piece == (b + a if label else a + b)
        labels.append(label)
    assert 0.43 < np.mean(labels) < 0.57


def test_loss_is_the_mean_over_tokens_plus_the_mean_over_pairs(create):
    draw = np.random.default_rng(0)
    shapes = ((3, 5, 4), (11, 4), (3, 2))
    x, kernel, guess = (draw.normal(size=shape).astype(np.float32) for shape in shapes)
    targets = {
        "labels": draw.integers(0, 11, (3, 5), dtype=np.int32),
        "weights": np.float32([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
        "next_sentence_label": np.int32([1, 0, 1]),
        "next_sentence_weight": np.float32([1, 1, 0]),
    }
    objective = create("masked_lm", pairs="next_sentence")
    loss = jax.jit(functools.partial(objective.loss, chunks=1))
    sums = loss(Features(DeferredLogits(x, kernel), guess), targets)

    def entropy(logits, labels):
        right = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        return np.log(np.exp(logits).sum(-1)) - right

    expected = (entropy(x @ kernel.T, targets["labels"]) * targets["weights"]).sum() / 4
    expected += entropy(guess, targets["next_sentence_label"])[:2].mean()
    np.testing.assert_allclose(sums.mean(), expected, rtol=1e-5)
    assert set(sums.metrics) == {"nll", "accuracy", "next_sentence_accuracy"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, r"rate=0\.0:.*strictly.*0 and 1"),
        ({"mask_share": 0.9, "random_share": 0.2}, r"mask_share=0\.9, random_share=0\.2:.*most.*1"),
        ({"unit": "word"}, "unit='word': no 'word'; choose from token, whole_word"),
        ({"pairs": "nsp"}, "pairs='nsp': no 'nsp'; choose from none, next_sentence, sentence_"),
    ],
)
def test_what_cannot_work(create, options, message):
    with pytest.raises(ValueError, match=message):
        create("masked_lm", **options)


def test_a_row_has_a_place_for_each_masked_token_and_room_for_text(create, records_of, generator):
    objective = create("masked_lm", rate=0.2)
    example = objective.make_example(records_of(objective), 0, generator())
    assert example["targets"]["labels"].shape == (math.ceil(48 * 0.2),)
    with pytest.raises(ConfigError, match=r"length=5: too short for masked_lm; must be at least 6"):
        records_of(create("masked_lm"), length=5)
