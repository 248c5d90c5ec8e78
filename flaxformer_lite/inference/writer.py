"""Writing for many prompts in batches of one shape, so that a run compiles its generation once."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import multihost_utils

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.prompts import ids_without_text, max_tokens
from flaxformer_lite.objectives.rows import Tokenizer
from flaxformer_lite.types import Array, Params

PROMPT_BATCH = 16  # most prompts read at a time
Ids = Sequence[int] | np.ndarray


def make_writer(
    model: nn.Module, params: Params, tokenizer: Tokenizer
) -> Callable[..., list[list[int]]]:
    """Builds a function that continues prompts, for objectives that generate in evaluation.

    See `Objective.write`.

    The function takes a list of prompts (an encoder-decoder's sources), `width`, the length to
    which all are padded, `max_new_tokens`, and further settings of `generate`; it returns the new
    ids of each, without its stop token. A prompt of a decoder that leaves too little of its
    position table loses its beginning. Several processes all write the same, each on a device of
    its own with whole parameters.

    Args:
      model: a linen module without a mesh.
      params: its parameters, on any mesh.
      tokenizer: gives the padding id, and the size of the vocabulary that has texts.
    """
    vocab = model.cfg.of_decoder.vocab_size
    usual: dict[str, Any] = {
        "pad_token_id": min(tokenizer.pad_id, vocab - 1),
        "suppress_tokens": ids_without_text(model.cfg, tokenizer),
    }

    if is_encoder_decoder(model.cfg) and model.cfg.decoder_start_token_id is None:
        usual["decoder_start_token_id"] = usual["pad_token_id"]  # as in training

    def write(
        prompts: Sequence[Ids], *, width: int, max_new_tokens: int, **settings: Any
    ) -> list[list[int]]:
        reserved = 0 if is_encoder_decoder(model.cfg) else max_new_tokens
        room = min(width, max_tokens(model.cfg) - reserved)
        if room < 1:
            raise ConfigError(
                f"{max_new_tokens} new tokens: the model's position table ends at"
                f" {model.cfg.max_length}; ask for fewer."
            )
        replicated = _on_this_process(params)
        written = []
        size = min(PROMPT_BATCH, len(prompts))
        for start in range(0, len(prompts), PROMPT_BATCH):
            batch = list(prompts[start : start + PROMPT_BATCH])
            # Filled up with copies, as a smaller last batch would compile another program.
            filled = batch + batch[-1:] * (size - len(batch))
            ids, mask = fill_rectangle(filled, room, usual["pad_token_id"])
            options = {**usual, "max_new_tokens": max_new_tokens, **settings}
            made = generate(model, replicated, ids, mask, return_scores=True, **options)
            new = made.sequences[:, -int(made.lengths.max()) :]
            stops = np.atleast_1d(settings.get("eos_token_id", ()))
            for row, length in zip(new[: len(batch)], made.lengths, strict=False):
                kept = row[:length]
                if len(kept) and kept[-1] in stops:
                    kept = kept[:-1]
                written.append(kept.tolist())
        return written

    return write


def fill_rectangle(rows: list[Ids], width: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows on the right to `width`, and keeps the end of longer ones.

    Returns:
      Ids and mask, [N, width].
    """
    ids = np.full((len(rows), width), pad, np.int32)
    mask = np.zeros((len(rows), width), bool)
    for number, row in enumerate(rows):
        kept = np.asarray(row, np.int32)[-width:]
        ids[number, : len(kept)] = kept
        mask[number, : len(kept)] = True
    return ids, mask


def _on_this_process(params: Params) -> Params:
    """Gathers parameters that are sharded over processes."""
    if jax.process_count() == 1:
        return params

    def local(x: jax.Array) -> Array:
        if x.is_fully_replicated:
            return x.addressable_data(0)
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(local, params)
