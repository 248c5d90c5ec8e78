"""The division of a mixture's rows: shares within two rows at every prefix, and no state."""

import itertools
import random
from fractions import Fraction

import pytest

from flaxformer_lite.data.mixing import Mixing, Stage


def dealt(mixing, rows):
    return [mixing.find(row)[0] for row in range(rows)]


def prefixes(sources, count):
    """Yields the number of rows of each source in every prefix."""
    so_far = [0] * count
    for source in sources:
        so_far[source] += 1
        yield tuple(so_far)


def random_weights(draw, count):
    kind = draw.random()
    if kind < 0.3:
        return tuple(draw.choice((0.5, 1, 1, 2)) for _ in range(count))
    if kind < 0.6:
        return tuple(draw.random() ** 3 + 0.001 for _ in range(count))
    return (1.0, *(draw.choice((0, 0.2, 1, 5)) for _ in range(count - 1)))


@pytest.mark.parametrize("number", range(60))
def test_counts_stay_within_two_rows_of_what_is_due(number):
    draw = random.Random(number)
    count = draw.choice((1, 2, 3, 4, 7, 12, 20))
    stages = [Stage(0, random_weights(draw, count))]
    for _ in range(draw.choice((0, 0, 1, 3, 20))):
        stages.append(Stage(stages[-1].row + draw.randint(1, 50), random_weights(draw, count)))
    mixing = Mixing(stages, [None] * count)
    sources = dealt(mixing, 500)
    due = [Fraction(0)] * count
    for row, counts in enumerate(prefixes(sources, count), start=1):
        (stage,) = [stage for stage in stages if stage.row < row][-1:]
        weights = list(map(Fraction, stage.weights))
        due = [amount + weight / sum(weights) for amount, weight in zip(due, weights, strict=True)]
        assert row % 50 or mixing.counts(row) == list(counts)
        assert all(abs(n - amount) < 2 for n, amount in zip(counts, due, strict=True))
    numbers = {source: itertools.count() for source in range(count)}
    found = [mixing.find(row)[1] for row in range(500)]
    assert found == [next(numbers[source]) for source in sources]


@pytest.mark.parametrize("number", range(20))
def test_no_source_has_more_rows_than_its_limit(number):
    draw = random.Random(number)
    count = draw.choice((2, 3, 7, 20))
    weights = random_weights(draw, count)
    limits = [draw.randint(1, 90) for _ in range(count)]
    mixing = Mixing([Stage(0, weights), Stage(90, (1.0,) * count)], limits)
    counts = list(prefixes(dealt(mixing, mixing.total), count))[-1]
    assert counts == tuple(mixing.counts(mixing.total))
    if mixing.total < 90:  # no source with a weight is left before the second stage
        limits = [limit * bool(weight) for limit, weight in zip(limits, weights, strict=True)]
    assert list(counts) == limits


@pytest.mark.parametrize(
    "weights", [(0.7, 0.3), (0.7, 0.2, 0.1), (5, 1, 1, 1, 1), (0.9, 0.05, 0.03, 0.02), (1,) * 9]
)
def test_counts_within_one_row_of_the_weights_themselves(weights):
    mixing = Mixing([Stage(0, weights)], [None] * len(weights))
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    for row, counts in enumerate(prefixes(dealt(mixing, 3000), len(weights)), start=1):
        assert all(abs(n - row * share) < 1 for n, share in zip(counts, shares, strict=True))


def test_an_exhausted_source_leaves_its_part_to_the_others_in_proportion():
    mixing = Mixing([Stage(0, (6.0, 3.0, 1.0))], [60, None, None])
    counts = list(prefixes(dealt(mixing, 500), 3))
    assert counts[99] == (60, 30, 10) and counts[499] == (60, 330, 110)
    assert all(abs(counts[n - 1][1] - 30 - 0.75 * (n - 100)) < 1 for n in range(100, 501))


def test_a_source_that_ends_within_a_row():
    mixing = Mixing([Stage(0, (3.0, 1.0, 1.0))], [10, 3, 2])
    assert mixing.total == 15
    assert sorted(dealt(mixing, 15)) == [0] * 10 + [1] * 3 + [2] * 2


def test_the_mixture_ends_where_no_source_with_a_weight_is_left():
    stages = [Stage(0, (1.0, 0.0)), Stage(100, (0.0, 1.0))]
    assert Mixing(stages, [40, 40]).total == 40
    assert Mixing(stages, [200, 30]).total == 130
    assert Mixing(stages, [None, None]).total is None


def test_weights_change_at_a_stage():
    mixing = Mixing([Stage(0, (3.0, 1.0, 0.0)), Stage(1000, (0.0, 1.0, 1.0))], [None] * 3)
    counts = list(prefixes(dealt(mixing, 2000), 3))
    assert counts[999] == (750, 250, 0) and counts[1999] == (750, 750, 500)
    assert mixing.shares(0) == [0.75, 0.25, 0] and mixing.shares(1000) == [0, 0.5, 0.5]


def test_a_stage_ends_with_whole_rows_of_each_source():
    mixing = Mixing([Stage(0, (1.0, 1.0, 1.0)), Stage(4, (1.0, 0.0, 0.0))], [None] * 3)
    counts = list(prefixes(dealt(mixing, 12), 3))
    assert sorted(counts[3]) == [1, 1, 2] and counts[11][1:] == counts[3][1:]


def test_far_rows_are_found_as_quickly_and_as_exactly():
    stages = [Stage(0, (0.61, 0.2, 0.1, 0.09)), Stage(10**8, (1.0, 2.0, 3.0, 4.0))]
    mixing = Mixing(stages, [10**7, None, None, None])
    far = 512 * 10**6
    counts = mixing.counts(far)
    assert counts[0] == 10**7 and sum(counts) == far
    sources = [mixing.find(far + row) for row in range(1000)]
    assert abs(sum(source == 3 for source, _ in sources) - 1000 * 4 / 9) < 2
    assert sources[0][1] == counts[sources[0][0]]


def test_a_share_too_small_for_any_row_counts_as_none():
    assert Mixing([Stage(0, (1.0, 1e-6))], [None, None]).largest_shares == [1, 0]
