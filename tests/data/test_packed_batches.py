"""Packing places every token of a batch once, in few shapes, the same in all processes."""

import numpy as np
import pytest

from flaxformer_lite.data.packed_batches import Packer, Shape, draws, first_fit, rows_needed

LENGTH = 64
SIZES = np.random.default_rng(0).geometric(1 / 9, size=(500, 1)).clip(0, LENGTH).astype(np.int32)


def planned(sizes=SIZES, batch_size=16, **options):
    packer = Packer(sizes.__getitem__, sizes.shape[1], LENGTH, batch_size, **options)
    return packer.planned(draws(len(sizes), batch_size, sizes.shape[1]))


@pytest.mark.parametrize("texts", [1, 2])
def test_each_token_has_one_slot_beside_those_of_its_text(texts):
    sizes = SIZES.reshape(-1, texts)
    packer = planned(sizes, ways=2, accumulate=2)
    examples = np.arange(16)
    packing = packer.pack(examples, np.arange(16))
    assert packing.shape in {packer.array_shape(shape) for shape in packer.shapes}
    split = examples.reshape(2, 4, 2)  # device, row, microbatch: those of training/step.py
    for group, slots in enumerate(packing):
        own = np.maximum(sizes[split[group // 2, :, group % 2]].ravel(), 1)
        due = [text * LENGTH + column for text, size in enumerate(own) for column in range(size)]
        assert sorted(slots[slots >= 0]) == due
        starts = slots[(slots >= 0) & (slots % LENGTH == 0)]
        assert len(starts) == len(own)
        runs = np.diff(slots, axis=1)[(slots[:, 1:] >= 0) & (slots[:, 1:] % LENGTH > 0)]
        assert (runs == 1).all()


def test_little_padding_is_left_and_texts_with_little_padding_are_not_packed():
    packer = planned(batch_size=32)
    assert packer.share < 0.25 and packer.filled > 1 / 1.3
    assert len(packer.shapes) <= 4
    assert not planned(np.full((50, 1), LENGTH - 4)).shapes


def test_processes_have_their_part_of_one_packing():
    packer = planned(ways=4)
    examples = np.arange(100, 116)
    whole = packer.pack(examples, np.arange(16))
    parts = [packer.pack(examples, np.arange(first, first + 8)) for first in (0, 8)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_batch_that_fits_no_shape_is_left_padded():
    sizes = SIZES.copy()
    sizes[:16] = LENGTH
    packer = planned(sizes)
    assert packer.pack(np.arange(16), np.arange(16)) is None


def test_first_fit_places_the_longest_first():
    assert first_fit(np.asarray([2, 5, 3]), Shape(2, 5)) == [(1, 3), (0, 0), (1, 0)]
    assert first_fit(np.asarray([3, 3, 3]), Shape(2, 5)) is None
    assert rows_needed(np.asarray([2, 5, 3]), 5) == 2
    assert rows_needed(np.asarray([2, 6, 3]), 5) == np.inf
