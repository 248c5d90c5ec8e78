"""Examples in packed rows have the vectors, and give the gradients, that they have when padded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import build_model
from flaxformer_lite.models.skeletons.packed_rows import PackedRows
from tests.marks import daily
from tests.models import tiny

LENGTHS = (3, 10, 5, 1, 9, 4)
WIDTH = 12
# For each family its head, and what it has of its own.
CASES = [
    ("bert", "sequence_classification"),  # learned positions, token types
    ("roberta", "token_classification"),  # positions from the padding id on
    ("distilbert", "question_answering"),
    ("roformer", "sequence_classification"),  # rotary
    ("t5", "encoder"),  # buckets of distances
    ("transformer", "encoder"),  # sinusoidal
    ("bloom", "sequence_classification"),  # ALiBi, causal
    ("recurrent_encoder", "sequence_classification"),
]


def packed(groups):
    """Places the texts of each group one behind the other in rows of WIDTH."""
    count = len(LENGTHS) // groups
    slots = np.full((groups, 5, WIDTH), -1, np.int32)
    for group in range(groups):
        row = column = 0
        for text, size in enumerate(LENGTHS[group * count :][:count]):
            if column + size > WIDTH:
                row = row + 1
                column = 0
            slots[group, row, column : column + size] = text * tiny.T + np.arange(size)
            column += size
    return slots


DAILY = (("t5", "encoder"),)


@pytest.mark.parametrize(("family", "head"), daily(CASES, DAILY))
def test_packed_rows_change_neither_outputs_nor_gradients(family, head):
    cfg = tiny.small(family, number=1, head=head, pad_token_id=1)
    mask = (np.arange(tiny.T) < np.asarray(LENGTHS)[:, None]).astype(np.int32)
    ids = np.where(mask, tiny.ids(batch=len(LENGTHS)), 1)
    inputs = {"attention_mask": mask}
    if cfg.type_vocab_size > 1:
        inputs["token_type_ids"] = mask * (np.arange(tiny.T) > 2).astype(np.int32)
    model = build_model(cfg)
    params = jax.jit(model.init)(jax.random.key(0), ids, **inputs)["params"]

    def kept_of(x):
        return mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)) > 0

    def loss(params, **more):
        output = model.apply({"params": params}, ids, **inputs, **more)
        kept = jnp.where(mask[..., None] > 0, output.last_hidden_state, 0)
        logits = [x for x in (output.logits, output.start_logits) if x is not None]
        real = [x if x.shape[1] != tiny.T else jnp.where(kept_of(x), x, 0) for x in logits]
        return sum(jnp.sin(x).sum() for x in [kept, *real]), (kept, real)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, due), due_gradient = step(params)
    for groups in (1, 2):
        (_, found), gradient = step(params, packing=packed(groups))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, due)
        assert tiny.distance(gradient, due_gradient) < 1e-6


def test_a_packing_that_does_not_fit_the_batch_is_refused():
    with pytest.raises(ConfigError, match=r"packing: 3.*not divide.*2 groups"):
        PackedRows(np.zeros((2, 1, 4), np.int32), (3, 4))
    with pytest.raises(ConfigError, match=r"packing: must be integers \[groups, rows, width\]"):
        PackedRows(np.zeros((1, 4), np.int32), (3, 4))
