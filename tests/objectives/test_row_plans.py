from itertools import pairwise

import numpy as np
import pytest

from flaxformer_lite.objectives.row_plans import (
    MANY_PIECES,
    NUM_PLANS,
    cut_documents,
    cut_windows,
    share_rows,
    shift_of,
)


def offsets_of(*lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def rows(plan):
    """For each row its pieces as (document, first token, tokens)."""
    parts = (plan.document, plan.start, plan.length)
    pieces = list(zip(*(part.tolist() for part in parts), strict=True))
    return [pieces[a:b] for a, b in pairwise(plan.first)]


def test_windows_by_hand():
    plan = cut_windows(offsets_of(3, 4, 1, 5), width=5, stride=4)
    assert rows(plan) == [[(0, 0, 3), (1, 3, 2)], [(1, 4, 3), (2, 7, 1), (3, 8, 1)], [(3, 8, 5)]]


def test_shifted_windows_by_hand():
    plan = cut_windows(offsets_of(3, 4, 1, 5), width=5, stride=4, shift=0.5)
    first, second, *others = rows(plan)
    assert [first, second] == [[(0, 0, 3)], [(0, 2, 1), (1, 3, 4)]]
    assert others == [[(1, 6, 1), (2, 7, 1), (3, 8, 3)], [(3, 10, 3)]]


def test_the_shifts_of_epochs_begin_at_0_and_are_far_apart():
    shifts = [shift_of(epoch) for epoch in range(NUM_PLANS)]
    assert shifts[0] == 0 and shift_of(NUM_PLANS) == 0 and shift_of(NUM_PLANS + 1) == shifts[1]
    for few in (2, 3, 5, 8, NUM_PLANS):
        ring = np.sort(shifts[:few])
        assert np.diff(ring, append=1).min() > 0.5 / few


SHIFTS = pytest.mark.parametrize("shift", [0.0, 0.01, 0.3, 0.62, 0.999])


@SHIFTS
@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_once_a_label(seed, shift):
    draw = np.random.default_rng(seed)
    offsets = offsets_of(*draw.integers(1, 30, 40))
    length = int(draw.integers(2, 20))
    labels = []
    plan = cut_windows(offsets, length + 1, length, shift)
    assert 0 <= len(plan.first) - len(cut_windows(offsets, length + 1, length).first) <= 1
    full = np.add.reduceat(plan.length, plan.first[:-1]) == length + 1
    assert full[1:-1].all(), "padding in the first and last row only"
    for row in rows(plan):
        assert sum(n for _, _, n in row) <= length + 1
        for document, start, n in row:
            assert offsets[document] <= start and start + n <= offsets[document + 1]
            labels.extend(range(start + 1, start + n))
    due = set(range(offsets[-1])) - set(offsets[:-1].tolist())
    assert sorted(labels) == sorted(due), "all but first tokens, once"


@SHIFTS
@pytest.mark.parametrize("seed", range(8))
def test_cut_keeps_every_token_but_end_of_text(seed, shift):
    draw = np.random.default_rng(seed)
    offsets = offsets_of(*draw.integers(1, 90, 40))
    capacity = int(draw.integers(4, 30))
    plan = cut_documents(offsets, capacity, 2, shift)
    kept = [token for row in rows(plan) for _, start, n in row for token in range(start, start + n)]
    expected = [t for a, b in pairwise(offsets) if b - a - 1 >= 2 for t in range(a, b - 1)]
    assert kept == expected
    assert plan.length.min() >= 2
    assert plan.length.max() <= capacity
    for document in np.unique(plan.document):
        lengths = plan.length[plan.document == document]
        equal = lengths[bool(shift) & (len(lengths) > 1) :]
        fewest = -(-lengths.sum() // capacity)
        assert equal.max() - equal.min() <= 1, "equal pieces, but for the first of a shifted plan"
        is_moved = shift and fewest >= MANY_PIECES and (-lengths.sum()) % capacity < capacity // 4
        assert len(lengths) == fewest + bool(is_moved)


def test_the_cuts_of_a_long_document_move_freely():
    shifts = map(shift_of, range(1, NUM_PLANS))
    firsts = [cut_documents(offsets_of(MANY_PIECES * 30 + 1), 30, 2, s).length[0] for s in shifts]
    assert len(set(firsts)) > 12 and min(firsts) < 6 and max(firsts) > 26


def test_what_is_not_cut_does_not_move():
    offsets = offsets_of(9, 5, 3, 8, 2)
    assert rows(cut_documents(offsets, 8, 2, 0.4)) == rows(cut_documents(offsets, 8, 2))


def test_sharing_rows_by_hand():
    plan = cut_documents(offsets_of(5, 4, 3, 8, 2), 7, 1)
    assert plan.length.tolist() == [4, 3, 2, 7, 1]
    shared = share_rows(plan, plan.length[:, None].astype(np.int64), (8,))
    assert [[n for _, _, n in row] for row in rows(shared)] == [[4, 3], [2], [7, 1]]
    both = np.stack([plan.length, np.full(5, 5)], axis=1).astype(np.int64)
    assert [len(row) for row in rows(share_rows(plan, both, (8, 9)))] == [1] * 5


@pytest.mark.parametrize("seed", range(5))
def test_shared_rows_fit_and_are_full(seed):
    draw = np.random.default_rng(seed)
    plan = cut_documents(offsets_of(*draw.integers(3, 25, 60)), 16, 2)
    costs = np.stack([plan.length + 2, plan.length // 4 + 2], axis=1).astype(np.int64)
    shared = share_rows(plan, costs, (20, 12))
    sums = np.add.reduceat(costs, shared.first[:-1])
    assert (sums <= (20, 12)).all() and shared.first[-1] == len(costs)
    with_next = sums[:-1] + costs[shared.first[1:-1]]
    assert (with_next > (20, 12)).any(axis=1).all(), "the next would not have fitted"


def test_a_piece_larger_than_a_row():
    plan = cut_documents(offsets_of(9), 8, 1)
    with pytest.raises(AssertionError, match="larger than a row"):
        share_rows(plan, plan.length[:, None].astype(np.int64), (7,))
