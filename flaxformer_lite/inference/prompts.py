"""Prepares prompts on the host: checks, right-aligns and pads them to one of a few lengths."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.types import Array

MAX_PROMPT_TOKENS = 1 << 24  # tokens of a row, for a model without a position table


# Token ids, or a mask of them: an array [B, T], or rows of any lengths.
Ids = Array | Sequence[Sequence[int]] | Sequence[np.ndarray]


class HasVocabulary(Protocol):
    """A tokenizer with ids 0 .. vocab_size - 1."""

    @property
    def vocab_size(self) -> int: ...


class Prompt(NamedTuple):
    """Rows of tokens, right-aligned, so that all rows continue in the same column."""

    tokens_BT: Array  # int32; T is usually the length of a bucket
    start_B: Array  # int32, the column of the first token of each row
    width: int  # the number of columns that the caller passed; they are the last ones of T


class EncoderInput(NamedTuple):
    """The input of an encoder, padded on the right."""

    tokens_BS: np.ndarray
    mask_BS: np.ndarray


def refuse_traced(values: object) -> None:
    """Refuses a tree of arrays of which jax.jit, vmap or grad traces some."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
        raise ConfigError(
            "generate and score run outside of jit, vmap and grad, and compile their parts"
            " themselves; call them with arrays, all prompts at once."
        )


def round_to_bucket(length: int, least: int = 16) -> int:
    """Rounds a length up to its bucket: powers of two up to 256, then multiples of 256."""
    if length > 256:
        return -(-length // 256) * 256
    return max(least, 1 << (length - 1).bit_length())


def padded_length(cfg: ModelConfig, length: int, limit: int) -> int:
    """Returns the length to which rows are padded, so that few lengths are compiled.

    It is the length of a bucket, at most `limit`. For some layers, the result depends on columns of
    padding, and rows are not padded: experts get more room, and the last block of block-sparse
    attention moves.
    """
    reads_tokens = all(plugin.reads_one_token for plugin in cfg.feed_forwards)
    mixers = [registry.resolve_class("mixers", name) for name in cfg.mixer_names]
    if not reads_tokens or any(getattr(mixer, "whole_rows", False) for mixer in mixers):
        return length
    return min(round_to_bucket(length), limit)


def read_ids(
    vocab_size: int,
    input_ids: Ids,
    attention_mask: Ids | None,
    pad: int,
    name: str = "input_ids",
    *,
    left: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Converts ids to int32 [B, T] and a bool mask [B, T].

    A list of rows of any lengths is padded, left or right.
    """
    refuse_traced(input_ids)
    rows: Any = input_ids
    is_list = isinstance(input_ids, (list, tuple)) and all(np.ndim(row) == 1 for row in rows)
    if is_list and attention_mask is None and len(set(map(len, rows))) > 1:
        attention_mask = _rectangle([[1] * len(row) for row in rows], 0, left)
        input_ids = _rectangle(rows, pad, left)
    ids_BT = np.asarray(input_ids)
    if ids_BT.ndim != 2 or not ids_BT.size or ids_BT.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: must be integer token ids [batch, length], not {ids_BT.dtype} {ids_BT.shape}."
        )
    mask_BT = np.ones(ids_BT.shape, bool)
    if attention_mask is not None:
        mask_BT = np.asarray(attention_mask) != 0
    if mask_BT.shape != ids_BT.shape:
        raise ValueError(
            f"attention_mask has shape {mask_BT.shape}: must match {name}, {ids_BT.shape}."
        )
    if not mask_BT.any(axis=1).all():
        row = int(np.argmin(mask_BT.any(axis=1)))
        raise ValueError(f"attention_mask: row {row} keeps no token; a prompt needs at least one.")
    real = ids_BT[mask_BT]
    if real.min() < 0 or real.max() >= vocab_size:
        bad = int(real.max())
        if real.min() < 0:
            bad = int(real.min())
        raise ValueError(
            f"{name} holds the id {bad}: must be in 0..{vocab_size - 1}, the model's vocabulary;"
            " is it this model's tokenizer?"
        )
    known_BT = (ids_BT >= 0) & (ids_BT < vocab_size)  # masked ids may be any number
    return np.where(known_BT, ids_BT, pad).astype(np.int32), mask_BT


def _rectangle(rows: Sequence[Sequence[int]], fill: int, left: bool) -> list[list[int]]:
    width = max(map(len, rows))
    padded = []
    for row in rows:
        gap = [fill] * (width - len(row))
        if left:
            padded.append([*gap, *row])
        else:
            padded.append([*row, *gap])
    return padded


def align(ids_BT: np.ndarray, mask_BT: np.ndarray, pad: int, columns: int) -> Prompt:
    """Right-aligns the tokens of each row, padded on either side.

    Rows get `columns`, or more where the longest of them has more tokens.
    """
    B, width = ids_BT.shape
    lengths_B = mask_BT.sum(axis=1)
    T = max(int(lengths_B.max()), columns)
    if width == 1:
        T = 1
    tokens_BT = np.full((B, max(T, width)), pad, np.int32)
    # Stable, so that padding comes first and the tokens keep their order.
    tokens_BT[:, -width:] = np.take_along_axis(
        ids_BT, np.argsort(mask_BT, axis=1, kind="stable"), axis=1
    )
    return Prompt(tokens_BT[:, -T:], (T - lengths_B).astype(np.int32), min(width, T))


def pad_source(ids_BS: np.ndarray, mask_BS: np.ndarray, pad: int, columns: int) -> EncoderInput:
    """Pads an encoder's input on the right to `columns`; a longer one stays as it is."""
    gap = (0, 0), (0, max(columns - ids_BS.shape[1], 0))
    return EncoderInput(np.pad(ids_BS, gap, constant_values=pad), np.pad(mask_BS, gap))


def check_length(limit: int, name: str, tokens: int, new: int = 0) -> None:
    """Rejects lengths beyond `limit` before anything is traced.

    `limit` is the end of the model's position table, or MAX_PROMPT_TOKENS.
    """
    if tokens + new <= limit:
        return
    way = f"shorten {name}"
    if new and tokens < limit:
        way = f"ask for at most {limit - tokens} new tokens"
    length = f"{tokens} tokens"
    if new:
        length += f" and {new} new tokens"
    most = f"the model's max_length={limit}"
    if limit == MAX_PROMPT_TOKENS:
        most = str(limit)
    raise ConfigError(f"{name} of {length}: rows end at {most}; {way}.")


def max_tokens(cfg: ModelConfig) -> int:
    """Returns the maximum length: the model's position table sets it, or else LONGEST."""
    return cfg.max_length if cfg.has_position_table else MAX_PROMPT_TOKENS


def ids_without_text(cfg: ModelConfig, tokenizer: HasVocabulary) -> tuple[int, ...]:
    """Returns the ids that only pad the model's table to a round size.

    Pass them to `generate` as `suppress_tokens`.
    """
    return tuple(range(tokenizer.vocab_size, cfg.of_decoder.vocab_size))


def check_token_ids(cfg: ModelConfig, ids: list[int]) -> list[int]:
    """Returns the ids of a text, after checking that they are in the model's vocabulary.

    Raises:
      ConfigError: an id is outside the vocabulary.
    """
    if ids and max(ids) >= cfg.vocab_size:
        raise ConfigError(
            f"the tokenizer gives the id {max(ids)}, but the model's vocabulary ends at"
            f" {cfg.vocab_size - 1}: they do not belong together."
        )
    return ids
