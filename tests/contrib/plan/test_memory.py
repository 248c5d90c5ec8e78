"""Estimates of a chip's memory."""

from types import SimpleNamespace

import jax
import pytest

from flaxformer_lite.contrib.plan.memory import transient_logits
from flaxformer_lite.nn.functions.splade import MAX_LOGITS

ROWS = 2  # of a batch of 8 on each of 4 chips
CHUNK = 128  # a quarter of 512 labels
VOCABULARY = 1000


def sketch(head, batch):
    """Returns as much of a program as the estimate reads."""
    decoder = SimpleNamespace(d_model=64, vocab_size=VOCABULARY)
    model = SimpleNamespace(head=head, of_decoder=decoder)
    train = SimpleNamespace(batch_size=8, accumulate=1, loss_chunks=4)
    mesh = SimpleNamespace(shape={"data": 4, "fsdp": 1, "expert": 1})
    return SimpleNamespace(cfg=SimpleNamespace(model=model, train=train), batch=batch, mesh=mesh)


@pytest.mark.parametrize(
    ("head", "side", "shape", "count"),
    [
        ("lm", "targets", (8, 512), ROWS * CHUNK),
        ("masked_lm", "targets", (8, 80), ROWS * 20),
        ("lm", "inputs", (8, 512), ROWS * CHUNK),  # dpo
        ("lm", "inputs", (8, 3, 512), ROWS * 3 * CHUNK),  # the groups of grpo
        ("sequence_classification", "targets", (8,), 0),
    ],
)
def test_logits_that_exist_at_once_follow_from_the_labels(head, side, shape, count):
    batch = {"inputs": {}, "targets": {}}
    batch[side]["labels"] = jax.ShapeDtypeStruct(shape, "int32")
    assert transient_logits(sketch(head, batch)) == count * VOCABULARY


@pytest.mark.parametrize(("texts", "count"), [(2, 2_048_000), (20, MAX_LOGITS)])
def test_sparse_embeddings_hold_the_logits_of_some_tokens(texts, count):
    inputs = {"input_ids": jax.ShapeDtypeStruct((8, texts, 512), "int32")}
    program = sketch("masked_lm", {"inputs": inputs, "targets": {}})
    assert transient_logits(program) == count
