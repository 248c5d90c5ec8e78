"""Padding is left out without a loss of tokens, in few shapes, the same in all processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.padding import (
    Buckets,
    Packer,
    Shape,
    columns_used,
    draw_batches,
    first_fit,
    rows_needed,
    sides_of,
)
from flaxformer_lite.registry import resolve_class
from flaxformer_lite.text.tokenizer import Bytes
from tests.marks import daily
from tests.models import tiny
from tests.objectives import tables

WIDTH = 64
TEXTS = np.random.default_rng(0).geometric(1 / 9, size=(500, 1)).clip(0, WIDTH).astype(np.int32)
LENGTH = 128
SIZES = np.random.default_rng(0).geometric(1 / 20, size=(800, 1)).clip(1, 100).astype(np.int32)
ROWS = {
    "dpo": [{"prompt": "a", "chosen": "good", "rejected": "bad"}] * 2,
    "instruction": [{"prompt": "a", "response": "b" * n} for n in (3, 9)],
    "text_to_text": [{"source": "a" * n, "target": "b" * (12 - n)} for n in (3, 9)],
}


def packed(sizes=TEXTS, batch_size=16, **options):
    packer = Packer(sizes.__getitem__, sizes.shape[1], WIDTH, batch_size, **options)
    return packer.planned(draw_batches(len(sizes), batch_size, sizes.shape[1]))


@pytest.mark.parametrize("texts", [1, 2])
def test_each_token_has_one_slot_beside_those_of_its_text(texts):
    sizes = TEXTS.reshape(-1, texts)
    packer = packed(sizes, ways=2, accumulate=2)
    packing = packer.pack(np.arange(16), np.arange(16))
    assert packing.shape in {packer.array_shape(shape) for shape in packer.shapes}
    split = np.arange(16).reshape(2, 4, 2)  # device, row, microbatch: those of training/step.py
    for group, slots in enumerate(packing):
        own = np.maximum(sizes[split[group // 2, :, group % 2]].ravel(), 1)
        due = [text * WIDTH + column for text, size in enumerate(own) for column in range(size)]
        assert sorted(slots[slots >= 0]) == due
        assert ((slots >= 0) & (slots % WIDTH == 0)).sum() == len(own)
        runs = np.diff(slots, axis=1)[(slots[:, 1:] >= 0) & (slots[:, 1:] % WIDTH > 0)]
        assert (runs == 1).all()


def test_little_padding_is_left_and_texts_with_little_padding_are_not_packed():
    packer = packed(batch_size=32)
    assert packer.share < 0.25
    assert len(packer.shapes) <= 4
    assert not packed(np.full((50, 1), WIDTH - 4)).shapes


def test_processes_have_their_part_of_one_packing():
    packer = packed(ways=4)
    examples = np.arange(100, 116)
    whole = packer.pack(examples, np.arange(16))
    parts = [packer.pack(examples, np.arange(first, first + 8)) for first in (0, 8)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_batch_that_fits_no_shape_is_left_padded():
    sizes = TEXTS.copy()
    sizes[:16] = WIDTH
    packer = packed(sizes)
    assert packer.pack(np.arange(16), np.arange(16)) is None


def test_first_fit_places_the_longest_first():
    assert first_fit(np.asarray([2, 5, 3]), Shape(2, 5)) == [(1, 3), (0, 0), (1, 0)]
    assert first_fit(np.asarray([3, 3, 3]), Shape(2, 5)) is None
    assert rows_needed(np.asarray([2, 5, 3]), 5) == 2
    assert rows_needed(np.asarray([2, 6, 3]), 5) == np.inf


def cut_to(sizes, lengths=(LENGTH,), **options):
    buckets = Buckets(lengths, sizes, {("inputs", "input_ids"): 0})
    return buckets.planned(draw_batches(len(sizes), 8, 1), **options)


def test_the_longest_text_has_its_bucket_and_none_is_needed_without_padding():
    buckets = cut_to(SIZES)
    assert 2 <= len(buckets.shapes) <= 4
    assert max(buckets.shapes) == (112,)  # no batch is left for which there is no program
    assert buckets.share < 0.6
    assert all(width % 24 == 0 for (width,) in cut_to(SIZES, (144,), multiple=3).shapes)
    assert not cut_to(np.full((50, 1), LENGTH - 4)).shapes


def test_a_batch_keeps_every_token_and_has_the_same_width_in_every_process():
    buckets = cut_to(SIZES)
    examples = np.arange(8, 16)
    ids = (np.arange(LENGTH) < SIZES[examples]).astype(np.int32)
    whole = buckets.arrange({"inputs": {"input_ids": ids}}, examples, np.arange(8))
    part = buckets.arrange({"inputs": {"input_ids": ids[:2]}}, examples, np.arange(2))
    found = whole["inputs"]["input_ids"]
    assert found.sum() == SIZES[examples].sum()
    assert found.shape[1:] == part["inputs"]["input_ids"].shape[1:]
    assert found.shape[1] < LENGTH


def test_a_row_with_more_tokens_than_were_counted_is_refused():
    buckets = cut_to(SIZES)
    mask = np.ones((8, LENGTH), np.int32)
    with pytest.raises(ConfigError, match=r"row has 128 tokens.*store all that.*\.packing=False"):
        buckets.arrange({"inputs": {"attention_mask": mask}}, np.arange(8, 16), np.arange(8))


@pytest.mark.parametrize("name", daily(ROWS, ("instruction",)))
def test_the_loss_and_gradient_of_a_task_are_the_same_without_the_padding(name):
    task = resolve_class("objectives", name)()
    rows = [{column.role: row.get(column.role) for column in task.columns} for row in ROWS[name]]
    made = tables.records(task, rows, length=64, target_length=48)
    lengths = task.lengths(64, 48)[: made.sizes.shape[1]]
    example = task.make_example(made, 0, np.random.default_rng(0))
    assert np.all(columns_used(example) <= made.sizes[0])
    sides = sides_of(example, lengths)
    batch = jax.tree.map(jnp.asarray, tables.stack(task, made))
    widths = tuple(made.sizes.max(axis=0).tolist())
    assert sum(widths) < 0.8 * sum(lengths)
    cut = Buckets(lengths, made.sizes, sides).cut(batch, widths)
    family = {"text_to_text": "t5"}.get(name, "gpt2")
    cfg = tiny.small(family, number=1, max_length=64, vocab_size=512)
    module, params = tiny.built(task.fit_model(cfg, Bytes()))

    def loss(params, batch):
        outputs = module.apply({"params": params}, batch["inputs"], method=task.outputs)
        return task.loss(outputs, batch["targets"], chunks=1).mean()

    step = jax.jit(jax.value_and_grad(loss))
    due, due_gradient = step(params, batch)
    found, gradient = step(params, cut)
    assert float(found) == pytest.approx(float(due), rel=1e-6)
    assert tiny.distance(gradient, due_gradient) < 1e-6


def test_what_is_not_known_is_not_cut():
    mask = np.ones(LENGTH, np.int32)
    inputs = {"input_ids": mask, "attention_mask": mask}
    targets = {"label": np.int32(1), "weights": np.float32(1)}

    def sides(inputs, targets):
        return sides_of({"inputs": inputs, "targets": targets}, (LENGTH,))

    assert sides(inputs, targets)
    assert sides(inputs, {"label": 0 * mask}) is None  # as many classes as columns
    assert sides({"input_ids": mask}, targets) is None
