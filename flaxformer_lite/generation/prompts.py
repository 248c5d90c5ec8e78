"""Prompts on the host: checked, moved to the right end of a row, and padded to one of few lengths."""

from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError

NO_BOUND = 1 << 30  # of prompts, where the model has no table of positions


class Prompt(NamedTuple):
    """Rows of tokens, each ending in the last column, so that all continue in the same one.

    Attributes:
      tokens_BT: int32, T a bucket's length.
      start_B: int32, the first column of each row that holds a token.
      width: the columns that the caller gave, the last of T.
    """

    tokens_BT: np.ndarray
    start_B: np.ndarray
    width: int


class Source(NamedTuple):
    """What an encoder reads, padded on the right."""

    tokens_BS: np.ndarray
    mask_BS: np.ndarray


def bucket(length: int, least: int = 16) -> int:
    """The length that stands for this one and its like: powers of two up to 256, then multiples of 256."""
    if length > 256:
        return -(-length // 256) * 256
    return max(least, 1 << (length - 1).bit_length())


def read_ids(
    vocab_size: int, input_ids: Any, attention_mask: Any, pad: int, name: str = "input_ids", *, left: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """int32 ids [B, T] and boolean mask [B, T] of what the caller passed: an array, or a list of rows of any lengths,
    which are padded on the left or the right.

    Raises:
      ValueError: not integers, not two axes, an id outside the vocabulary, a mask of another shape, an empty row.
    """
    lists = isinstance(input_ids, (list, tuple)) and all(np.ndim(row) == 1 for row in input_ids)
    if lists and attention_mask is None and len({len(row) for row in input_ids}) > 1:
        attention_mask = _rectangle([[1] * len(row) for row in input_ids], 0, left)
        input_ids = _rectangle(input_ids, pad, left)
    ids_BT = np.asarray(input_ids)
    if ids_BT.ndim != 2 or not ids_BT.size or ids_BT.dtype.kind not in "iu":
        raise ValueError(f"{name}: integer token ids [batch, length], not {ids_BT.dtype} {ids_BT.shape}.")
    mask_BT = np.ones(ids_BT.shape, bool) if attention_mask is None else np.asarray(attention_mask) != 0
    if mask_BT.shape != ids_BT.shape:
        raise ValueError(f"attention_mask has shape {mask_BT.shape}: must be that of {name}, {ids_BT.shape}.")
    if not mask_BT.any(axis=1).all():
        row = int(np.argmin(mask_BT.any(axis=1)))
        raise ValueError(f"attention_mask: row {row} keeps no token; a prompt needs at least one.")
    real = ids_BT[mask_BT]
    if real.min() < 0 or real.max() >= vocab_size:
        bad = int(real.min() if real.min() < 0 else real.max())
        raise ValueError(
            f"{name} holds the id {bad}: must be in 0..{vocab_size - 1}, the model's vocabulary;"
            f" is it this model's tokenizer?"
        )
    known_BT = (ids_BT >= 0) & (ids_BT < vocab_size)  # what the mask hides may be any number
    return np.where(known_BT, ids_BT, pad).astype(np.int32), mask_BT


def _rectangle(rows: list[list[int]], fill: int, left: bool) -> list[list[int]]:
    width = max(map(len, rows))
    fills = [[fill] * (width - len(row)) for row in rows]
    return [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, fills, strict=True)]


def align(ids_BT: np.ndarray, mask_BT: np.ndarray, pad: int, limit: int) -> Prompt:
    """Moves each row's tokens to the right end, whichever side they were padded on, in a row of a bucket's length.

    Args:
      ids_BT: int32.
      mask_BT: bool.
      pad: the id of the columns that a bucket adds.
      limit: the longest prompt that the model takes (NO_BOUND: any).
    """
    B, width = ids_BT.shape
    order_BT = np.argsort(mask_BT, axis=1, kind="stable")
    lengths_B = mask_BT.sum(axis=1)
    T = 1 if width == 1 else max(int(lengths_B.max()), min(bucket(width), limit))
    tokens_BT = np.full((B, max(T, width)), pad, np.int32)
    tokens_BT[:, -width:] = np.take_along_axis(ids_BT, order_BT, axis=1)
    return Prompt(tokens_BT[:, -T:], (T - lengths_B).astype(np.int32), min(width, T))


def pad_source(ids_BS: np.ndarray, mask_BS: np.ndarray, pad: int, limit: int) -> Source:
    """An encoder's input, padded on the right to a bucket's length."""
    B, width = ids_BS.shape
    added = max(min(bucket(width), limit) - width, 0)
    pads = np.full((B, added), pad, np.int32)
    return Source(np.concatenate([ids_BS, pads], axis=1), np.concatenate([mask_BS, pads * 0 != 0], axis=1))


def check_length(limit: int, name: str, tokens: int, new: int = 0) -> None:
    """Refuses what the table of positions cannot hold, before anything is traced.

    Raises:
      ConfigError: prompt and continuation are longer than the table, `limit`.
    """
    if tokens + new <= limit:
        return
    way = f"ask for at most {limit - tokens} new tokens" if new and tokens < limit else f"shorten {name}"
    new_tokens = f" and {new} new tokens" if new else ""
    raise ConfigError(
        f"{name} of {tokens} tokens{new_tokens}: the model's table of positions ends at max_length={limit}; {way}."
    )
