"""More tokens and longer positions for a published model."""

import dataclasses
import logging
import numbers
from collections.abc import Callable

import flax.linen as nn
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained.lazy_params import Stored, in_memory

NEW_TOKENS = ("mean", "normal")
NEW_POSITIONS = ("repeat", "interpolate")
LOG = logging.getLogger("flaxformer_lite")


def grow_vocabulary(
    model: nn.Module, stored: dict, vocab_size: int, *, new_tokens: str = "mean", seed: int = 0
) -> tuple[nn.Module, dict]:
    """Returns the model with more tokens, and its parameters; the old rows stay as they are.

    Args:
      model: a model of a family.
      stored: its parameters, which may still be in their files; only tables that grow are read.
      vocab_size: number of tokens.
      new_tokens: "mean": a new row is the mean of the old ones, so that no new token is likelier
        than all old ones (Hewitt 2021, "Initializing New Word Embeddings"). "normal": drawn around
        the mean with the deviation of each column.
      seed: of "normal".

    Raises:
      ConfigError: the model has more tokens already.
    """
    _check_choice("new_tokens", new_tokens, NEW_TOKENS)
    random = np.random.default_rng(seed)

    def more_rows(path: str, rows: np.ndarray, count: int) -> np.ndarray:
        # In float32, as a sum of bfloat16 over a vocabulary stops growing.
        mean = rows.mean(axis=0, dtype=np.float32)
        new = np.broadcast_to(mean, (count, *mean.shape))
        if new_tokens == "normal":
            deviation = rows.std(axis=0, dtype=np.float32)
            new = random.normal(mean, deviation, (count, *mean.shape))
        return np.concatenate([rows, new.astype(rows.dtype)])

    old = model.cfg.vocab_size
    grown = _grow(model, stored, "vocab_size", vocab_size, more_rows)
    if vocab_size > old:
        LOG.warning(
            "new tokens: %d rows, by %r; train them before use.", vocab_size - old, new_tokens
        )
    return grown


def grow_positions(
    model: nn.Module, stored: dict, max_length: int, *, new_positions: str = "repeat"
) -> tuple[nn.Module, dict]:
    """Returns the model for longer texts, and its parameters.

    A model without a position table, as with rotary positions, has no parameters that change.

    Args:
      model, stored: as in `grow_vocabulary`.
      max_length: number of positions.
      new_positions: "repeat": the table begins again behind its last row (Beltagy et al. 2020,
        section 5), so that texts of the old length are read as before. "interpolate": its rows are
        spread over the new length.

    Raises:
      ConfigError: the model has more positions already, or knows them in a way that cannot grow,
        as by a table of distances.
    """
    _check_choice("new_positions", new_positions, NEW_POSITIONS)
    old = model.cfg.max_length

    def more_rows(path: str, rows: np.ndarray, count: int) -> np.ndarray:
        if path.split("/")[-1] != "position":
            raise ConfigError(
                f"max_length={max_length}: {path} has {len(rows)} rows that are no positions, and"
                f" cannot grow; the model reads at most {old} tokens."
            )
        unused = len(rows) - old  # OPT's and BART's rows before position 0
        if "positions" in getattr(model, "frozen_padding", ()):
            unused = model.cfg.pad_token_id + 1  # RoBERTa's
        positions = rows[unused:]
        length = len(positions)
        places = np.arange(length + count)
        if new_positions == "repeat":
            grown = positions[places % length]
        else:
            at = places * (length - 1) / (length + count - 1)
            # The last place is the last row itself: between the last two, with share 1.
            low = np.minimum(at.astype(int), length - 2)
            share = (at - low)[:, None].astype(np.float32)
            grown = (1 - share) * positions[low] + share * positions[low + 1]
        return np.concatenate([rows[:unused], grown.astype(rows.dtype)])

    grown = _grow(model, stored, "max_length", max_length, more_rows)
    if model.cfg.has_position_table and max_length > old:
        LOG.warning("new positions: %d rows, by %r of %d.", max_length - old, new_positions, old)
    return grown


def _grow(
    model: nn.Module,
    stored: dict,
    field: str,
    size: int,
    more_rows: Callable[[str, np.ndarray, int], np.ndarray],
) -> tuple[nn.Module, dict]:
    """Changes a size of the model, and the one axis of each parameter that follows it."""
    old = getattr(model.cfg, field)
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < old:
        raise ConfigError(
            f"{field}={size!r}: must be a whole number, at least the {old} of the weights."
        )
    grown = model.clone(cfg=dataclasses.replace(model.cfg, **{field: int(size)}))
    shapes = parameter_shapes(grown)
    flat = flatten_dict(stored, sep="/")
    for path, leaf in flat.items():
        due = shapes[path].shape
        axes = [axis for axis, length in enumerate(due) if leaf.shape[axis] != length]
        if not axes:
            continue
        (axis,) = axes
        rows = np.moveaxis(np.asarray(leaf), axis, 0)
        whole = np.moveaxis(more_rows(path, rows, due[axis] - len(rows)), 0, axis)
        flat[path] = whole
        if isinstance(leaf, Stored):
            flat[path] = in_memory(whole)
    return grown, unflatten_dict(flat, sep="/")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r}: must be {' or '.join(map(repr, choices))}.")
