"""Random text for the fixtures."""

from typing import Any

import numpy as np
from transformers import PreTrainedModel

Arrays = dict[str, Any]


def text(
    model: PreTrainedModel,
    lengths: tuple[int, ...],
    rng: np.random.Generator,
    *,
    choices: int = 0,
    left: bool = False,
) -> Arrays:
    """Draws ids and their mask, [B, T] or [B, choices, T]; except for padding, ids are 5 or above,
    past special tokens."""
    pad = model.config.pad_token_id
    vocab_size = model.config.vocab_size
    shape = (len(lengths), *([choices] if choices else []), max(lengths))
    index = np.arange(max(lengths))
    rows = [index >= max(lengths) - length if left else index < length for length in lengths]
    mask = np.broadcast_to(
        np.stack(rows).reshape(len(lengths), *([1] if choices else []), -1), shape
    )
    ids = np.where(mask, rng.integers(5, min(vocab_size, 60), shape), pad)
    return {"input_ids": ids, "attention_mask": np.array(mask, np.int32, order="C")}
