"""Rows of fixed shape, built from pieces of different lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PACKING = "packing"  # the input that says in which rows the tokens of a batch are computed


def fill(pieces: Sequence[np.ndarray], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates pieces into ids and segment ids, [length] int32.

    The segment id is 1 for the first piece, 2 for the second, and 0 for padding.
    """
    ids = np.full(length, pad, np.int32)
    segments = np.zeros(length, np.int32)
    at = 0
    for number, piece in enumerate(pieces, start=1):
        ids[at : at + len(piece)] = piece
        segments[at : at + len(piece)] = number
        at += len(piece)
    return ids, segments


def next_tokens(pieces: list[np.ndarray], records: Any) -> dict:
    """Builds an example of next-token prediction from records.length + 1 tokens.

    The label is the next token; its weight is 0 if it belongs to another document or is padding.
    """
    ids, segments = fill(pieces, records.length + 1, records.tokenizer.pad_id)
    same = (segments[1:] == segments[:-1]) & (segments[1:] > 0)
    return {
        "inputs": {"input_ids": ids[:-1], "segment_ids": segments[:-1]},
        "targets": {"labels": ids[1:], "weights": same.astype(np.float32)},
    }


def encoder_decoder(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], records: Any
) -> dict:
    """Builds an example for an encoder-decoder, where source i is visible to target i only.

    The decoder's input is its labels shifted right within each target, starting with the padding
    id, as T5 does; `with_decoder_start` puts another family's start token there.
    """
    pad = records.tokenizer.pad_id
    ids, segments = fill(sources, records.length, pad)
    labels, label_segments = fill(targets, records.target_length, pad)
    shifted, _ = fill(
        [np.concatenate([[pad], target[:-1]]) for target in targets], records.target_length, pad
    )
    inputs = {"input_ids": ids, "segment_ids": segments, "decoder_input_ids": shifted}
    inputs["decoder_segment_ids"] = label_segments
    return {
        "inputs": inputs,
        "targets": {"labels": labels, "weights": (label_segments > 0).astype(np.float32)},
    }


def with_decoder_start(
    inputs: Mapping[str, jax.Array], start: int | None
) -> Mapping[str, jax.Array]:
    """Starts each target of a row with the model's decoder_start_token_id, such as BART's.

    None keeps the input.
    """
    if start is None or "decoder_segment_ids" not in inputs:
        return inputs
    segments_BT = inputs["decoder_segment_ids"]
    ids_BT = inputs["decoder_input_ids"]
    begins_BT = jnp.diff(segments_BT, axis=1, prepend=jnp.zeros_like(segments_BT[:, :1])) > 0
    return {**inputs, "decoder_input_ids": jnp.where(begins_BT, jnp.int32(start), ids_BT)}


def framed(row: Any, records: Any) -> dict[str, np.ndarray]:
    """Pads a `Framed` row to the inputs of a model, each [T] int32.

    There are token types only where the frame has a second one.
    """
    padding = (0, records.length - len(row.ids))
    inputs = {
        "input_ids": np.pad(row.ids, padding, constant_values=records.tokenizer.pad_id),
        "attention_mask": np.pad(np.ones_like(row.ids), padding),
    }
    if records.frame.second_type:
        inputs["token_type_ids"] = np.pad(row.types, padding)
    return inputs
