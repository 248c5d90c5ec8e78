"""Rows of fixed shape, built from pieces of different lengths."""

import numpy as np


def fill(pieces: list[np.ndarray], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates pieces into a row.

    Returns:
      ids [length] int32 and segment ids [length] int32: 1 for the first piece, 2 for the second, 0 for padding.
    """
    ids = np.full(length, pad, np.int32)
    segments = np.zeros(length, np.int32)
    at = 0
    for number, piece in enumerate(pieces, start=1):
        ids[at : at + len(piece)] = piece
        segments[at : at + len(piece)] = number
        at += len(piece)
    return ids, segments


def next_tokens(pieces: list[np.ndarray], length: int, pad: int) -> tuple[dict, dict]:
    """Builds inputs and labels of next-token prediction from length + 1 tokens.

    The label is the next token; its weight is 0 if it belongs to another document or is padding.
    """
    ids, segments = fill(pieces, length + 1, pad)
    same = (segments[1:] == segments[:-1]) & (segments[1:] > 0)
    inputs = {"input_ids": ids[:-1], "segment_ids": segments[:-1]}
    return inputs, {"labels": ids[1:], "weights": same.astype(np.float32)}


def encoder_decoder(sources: list[np.ndarray], targets: list[np.ndarray], records) -> dict:
    """Builds an example for an encoder-decoder, where source i is visible to target i only.

    The decoder's input is its labels shifted right within each target, starting with the padding id, as T5 does.
    """
    pad = records.tokenizer.pad_id
    ids, segments = fill(sources, records.length, pad)
    labels, label_segments = fill(targets, records.target_length, pad)
    shifted, _ = fill([np.concatenate([[pad], target[:-1]]) for target in targets], records.target_length, pad)
    return {
        "inputs": {
            "input_ids": ids,
            "segment_ids": segments,
            "decoder_input_ids": shifted,
            "decoder_segment_ids": label_segments,
        },
        "targets": {"labels": labels, "weights": (label_segments > 0).astype(np.float32)},
    }
