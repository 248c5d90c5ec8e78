"""The schedule of a mixture: exact counts of blocks, shares within two rows at every prefix,
whatever the weights, and no state."""

import itertools
import random
from fractions import Fraction

import pytest

from flaxformer_lite.data import interleaving
from flaxformer_lite.data.interleaving import Interleaving, Stage


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 64 rows, so that a few hundred rows have many."""
    monkeypatch.setattr(interleaving, "BLOCK", 64)
    monkeypatch.setattr(interleaving, "LEAST_SHARE", Fraction(1, 32))


def dealt(schedule, rows):
    return [schedule.find(row)[0] for row in range(rows)]


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
def test_counts_stay_within_two_rows_of_what_is_due(small_blocks, number):
    draw = random.Random(number)
    count = draw.choice((1, 2, 3, 4, 7, 12, 20))
    stages = [Stage(0, random_weights(draw, count))]
    for _ in range(draw.choice((0, 0, 1, 3))):
        stages.append(Stage(stages[-1].row + draw.randint(1, 150), random_weights(draw, count)))
    limits = [draw.choice((None, draw.randint(1, 90))) for _ in range(count)]
    schedule = Interleaving(stages, limits)
    rows = 500 if schedule.total is None else min(500, schedule.total)
    sources = dealt(schedule, rows)
    for row, counts in enumerate(prefixes(sources, count), start=1):
        assert schedule.counts(row) == list(counts)
        segment = schedule._segments[schedule._place(row - 1)[0]]
        at = row - segment.row
        parts = zip(counts, segment.before, segment.shares, strict=True)
        due = [held + share * at for _, held, share in parts]
        assert sum(due) == row, "together the shares are one row"
        is_whole = at % interleaving.BLOCK == 0 and at + interleaving.BLOCK <= segment.length
        for given, amount, limit in zip(counts, due, limits, strict=True):
            assert abs(given - amount) < (1 if is_whole else 2)
            assert limit is None or given <= limit
    numbers = {source: itertools.count() for source in range(count)}
    found = [schedule.find(row)[1] for row in range(rows)]
    assert found == [next(numbers[source]) for source in sources]
    shuffled = draw.sample(range(rows), rows)
    other = Interleaving(stages, limits)  # without state
    assert [other.find(row)[0] for row in shuffled] == [sources[row] for row in shuffled]


@pytest.mark.parametrize(
    "weights", [(0.7, 0.3), (0.7, 0.2, 0.1), (5, 1, 1, 1, 1), (0.9, 0.05, 0.03, 0.02), (1,) * 9]
)
def test_counts_within_one_row_of_the_weights_themselves(weights):
    schedule = Interleaving([Stage(0, weights)], [None] * len(weights))
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    for row, counts in enumerate(prefixes(dealt(schedule, 3000), len(weights)), start=1):
        assert all(abs(n - row * share) < 1 for n, share in zip(counts, shares, strict=True))


def test_an_exhausted_source_leaves_its_part_to_the_others_in_proportion():
    schedule = Interleaving([Stage(0, (6.0, 3.0, 1.0))], [60, None, None])
    counts = list(prefixes(dealt(schedule, 500), 3))
    assert counts[99] == (60, 30, 10) and counts[499] == (60, 330, 110)
    assert all(abs(counts[n - 1][1] - 30 - 0.75 * (n - 100)) < 1 for n in range(100, 501))


def test_a_source_that_ends_within_a_row():
    schedule = Interleaving([Stage(0, (3.0, 1.0, 1.0))], [10, 3, 2])
    assert schedule.total == 15
    assert sorted(dealt(schedule, 15)) == [0] * 10 + [1] * 3 + [2] * 2


def test_the_mixture_ends_where_no_source_with_a_weight_is_left():
    stages = [Stage(0, (1.0, 0.0)), Stage(100, (0.0, 1.0))]
    assert Interleaving(stages, [40, 40]).total == 40
    assert Interleaving(stages, [200, 30]).total == 130
    assert Interleaving(stages, [None, None]).total is None


def test_weights_change_at_a_stage():
    schedule = Interleaving([Stage(0, (3.0, 1.0, 0.0)), Stage(1000, (0.0, 1.0, 1.0))], [None] * 3)
    counts = list(prefixes(dealt(schedule, 2000), 3))
    assert counts[999] == (750, 250, 0) and counts[1999] == (750, 750, 500)
    assert schedule.shares(0) == [0.75, 0.25, 0] and schedule.shares(1000) == [0, 0.5, 0.5]


def test_a_stage_ends_with_whole_rows_of_each_source():
    schedule = Interleaving([Stage(0, (1.0, 1.0, 1.0)), Stage(4, (1.0, 0.0, 0.0))], [None] * 3)
    counts = list(prefixes(dealt(schedule, 12), 3))
    assert sorted(counts[3]) == [1, 1, 2] and counts[11][1:] == counts[3][1:]


def test_any_row_is_found_without_those_before_its_block(monkeypatch):
    made = []
    make = Interleaving._make_block
    spy = lambda self, *place: made.append(place) or make(self, *place)  # noqa: E731
    monkeypatch.setattr(Interleaving, "_make_block", spy)
    stages = [Stage(0, (0.61, 0.2, 0.1, 0.09)), Stage(10**8, (1.0, 2.0, 3.0, 4.0))]
    schedule = Interleaving(stages, [10**7, None, None, None])
    far = 512 * 10**6
    sources = [schedule.find(far + row) for row in range(1000)]
    assert len(made) == len(set(made)) <= 1000 / interleaving.BLOCK + 2
    assert abs(sum(source == 3 for source, _ in sources) - 1000 * 4 / 9) < 1 + 1
    assert sources[0][1] == schedule.find(far)[1]


def test_a_share_too_small_for_any_row_counts_as_none():
    assert Interleaving([Stage(0, (1.0, 1e-6))], [None, None]).largest_shares == [1, 0]
