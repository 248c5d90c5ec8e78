"""Conversion of user arguments to the masks, positions and cache slots that layers read.

The three skeletons share it.
"""

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.embedding import positions_from_mask, positions_in_segments
from flaxformer_lite.nn.functions.masks import Mask, Slot
from flaxformer_lite.nn.modules.cache import Cache, layers_of, length_of, nan_where
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.types import Array

OrNone = TypeVar("OrNone", jax.Array, jax.Array | None)
NO_TOKEN = np.iinfo(np.int32).min  # no config names it, for padding or any other token
Rule = tuple[bool | jax.Array, str]  # whether it is broken, and the message


@dataclass(frozen=True)
class Slots:
    """T consecutive slots, from `index` on."""

    length: int  # T, the number of tokens in this call
    # int32 scalar, the slot of the first token; None without a cache
    index: jax.Array | np.int32 | None = None
    first: bool = True  # whether the cache is known to be empty
    faults: tuple[jax.Array, ...] = ()  # traced booleans; if one is True the output is NaN

    def of_call(self, x_BS: OrNone) -> OrNone:
        """Slices an array over slots (or None) to the tokens of this call, [B, T]."""
        if x_BS is None or self.first or self.index is None:
            return x_BS
        return jax.lax.dynamic_slice_in_dim(x_BS, self.index, self.length, axis=1)

    def columns(self) -> jax.Array:
        """Returns the slot numbers, int32 [1, T]."""
        columns_T = jnp.arange(self.length, dtype=jnp.int32)
        if not self.first and self.index is not None:
            columns_T = self.index + columns_T
        return columns_T[None]

    def in_context(self, context: Context) -> Context:
        if self.index is None:
            return context
        return context.replace(index=self.index, first=self.first)

    def check(self, x_BTD: jax.Array) -> jax.Array:
        """Turns the input into NaN if one of the faults is True, as a traced call cannot raise."""
        if not self.faults:
            return x_BTD
        return nan_where(self.faults, x_BTD)


def place_slots(
    tokens_BT: jax.Array, cache: Cache | None, index: Slot | None, /, **over_slots: Any
) -> tuple[Slots, list[jax.Array | None]]:
    """Returns the slots of a call's tokens, and the arrays over slots in the form that layers read.

    Args:
      tokens_BT: the tokens of this call.
      cache: the caches of all layers, or None.
      index: the slot of the first token; None is the cache's length.
      **over_slots: arrays [B, S] by argument name; without a cache [B, T]. They must reach the last
        slot of the call. The first is the mask of tokens to keep; if given, slots before may have
        never been written.

    Raises:
      ValueError: shapes that do not fit, or slots that were never written or that the caches no
        longer hold.
    """
    batch, length = tokens_BT.shape
    for name, x in over_slots.items():
        if x is not None and not hasattr(x, "ndim"):
            x = np.asarray(x)
            over_slots[name] = x
        _check_rows(name, x, batch, length if cache is None else None)
    if cache is None:
        if index is not None:
            raise ConfigError(
                f"cache_index={index}: needs a cache; pass cache=init_cache(cfg, batch, length)"
                " too."
            )
        return Slots(length), list(over_slots.values())
    if index is not None and jnp.shape(index) != ():
        raise ConfigError(
            f"cache_index has shape {jnp.shape(index)}: must be one number, the first token's slot."
        )
    held = _known(length_of(cache))
    start = held
    if index is not None:
        start = _known(index)
    rules = [*_rules(cache, start, held, next(iter(over_slots.values())) is None)]
    for name, x in over_slots.items():
        if x is not None:
            rules += _rules_over_slots(name, x, start + length)
    faults = []
    for broken, sentence in rules:
        if isinstance(broken, jax.core.Tracer):
            faults.append(broken)
        elif broken:
            raise ConfigError(sentence)
    first = isinstance(start, int) and start == 0
    arrays = []
    for x in over_slots.values():
        if first and x is not None:
            x = x[:, :length]
        arrays.append(x)
    if isinstance(start, int):
        # A number of numpy's stays known under jit, where one of jnp's is traced.
        slot: Any = np.int32(start)
    else:
        slot = start.astype(jnp.int32)
    return Slots(length, slot, first, tuple(faults)), arrays


def _rules(cache: Cache, index: Slot, held: Slot, unmasked: bool) -> Iterator[Rule]:
    """Yields pairs of a fault and its message."""
    layers = layers_of(cache)
    ring = min((c.slots for c in layers if c.rolls), default=None)
    yield index < 0, f"cache_index={index}: the slot of the first token, must not be negative."
    holds = f"cache_index={index}: the cache holds {held} positions, and"
    if unmasked:
        unwritten = (
            "the slots between were never written; leave cache_index out, or pass an attention_mask"
            " over slots."
        )
        yield index > held, f"{holds} {unwritten}"
    if ring is not None:
        dropped = (
            "dropped some that this token would see; keep the earlier cache, or start again from 0."
        )
        yield (
            (index > 0) & (index + 1 < held) & (held > ring),
            f"{holds} a window of {ring} has {dropped}",
        )


def _rules_over_slots(name: str, x_BS: jax.Array, stop: Slot) -> Iterator[Rule]:
    length = x_BS.shape[1]
    rule = f"with a cache it is over slots and must reach the last token's, {stop - 1}"
    yield stop > length, f"{name} has shape {x_BS.shape}: {rule}."
    if name == "prefix_mask":
        rule = (
            "are not yet read but would be visible to this call; pass the whole prefix in one call"
        )
        early = jnp.any(x_BS.astype(bool) & (jnp.arange(length) >= stop)[None])
        yield early, f"prefix_mask: marks slots from {stop} on, which {rule}."


def _known(x: Slot) -> Slot:
    if isinstance(x, jax.core.Tracer):
        return x
    return int(x)


def _check_rows(name: str, x: jax.Array | None, batch: int, length: int | None) -> None:
    if x is None:
        return
    if x.ndim != 2 or x.shape[0] != batch or (length is not None and x.shape[1] != length):
        wanted = f"[{batch}, {length}]"
        if length is None:
            wanted = f"[{batch}, slots]"
        raise ConfigError(
            f"{name} has shape {x.shape}: must be {wanted}, one row per row of input_ids."
        )


def ids_of(name: str, ids: Any, size: int, *, axes: str = "[batch, length]") -> jax.Array:
    """Converts ids to an integer array, checked if the values are known.

    Inside jit, ids out of range give NaN.

    Args:
      name: name of the argument.
      ids: an array, or lists of equal length.
      size: ids are 0 .. size - 1; 0 allows any number.
      axes: the axes it must have, for errors.

    Raises:
      ValueError: the ids are not integers, have the wrong number of axes, or are out of range.
    """
    if not hasattr(ids, "ndim"):
        ids = np.asarray(ids)
    if ids.ndim != axes.count(",") + 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ConfigError(f"{name}: must be integer ids {axes}, not {ids.dtype} {ids.shape}.")
    _check_not_empty(name, ids.shape)
    if size:
        check_range(name, ids, 0, size)
    if isinstance(ids, jax.Array):
        return ids
    return jnp.asarray(ids)


def _check_not_empty(name: str, shape: tuple[int, ...]) -> None:
    if 0 in shape[1:]:  # there may be no rows
        raise ConfigError(f"{name}: has shape {shape}; must have a token in each row.")


def read_ids(
    cfg: ModelConfig,
    ids: Any,
    vectors: Any,
    keep: Any = None,
    *,
    axes: str = "[batch, length]",
    names: tuple[str, str] = ("input_ids", "inputs_embeds"),
) -> jax.Array:
    """Returns the ids of a call; for vectors in their place, stand-ins of the same shape.

    A stand-in is NO_TOKEN, or the padding token where `keep` hides the vector, so that positions
    and the ends of texts are found as with ids.

    Args:
      cfg: the config of the model, or of its decoder.
      ids: integers of the shape `axes`, or None.
      vectors: one vector of the token table's width for each token, or None.
      keep: an attention mask; one of another shape, as over the slots of a cache, is not read.
      axes: the axes of ids, for errors.
      names: the names of both arguments.

    Raises:
      ConfigError: both are given or neither, or their shapes or values cannot be.
    """
    if (ids is None) == (vectors is None):
        raise ConfigError(f"{names[0]}, {names[1]}: pass exactly one of them.")
    if vectors is None:
        return ids_of(names[0], ids, cfg.vocab_size, axes=axes)
    is_float = jnp.issubdtype(jnp.result_type(vectors), jnp.floating)
    shape = jnp.shape(vectors)
    width = cfg.embedding_width
    if not is_float or len(shape) != axes.count(",") + 2 or shape[-1] != width:
        wanted = axes.replace("]", f", {width}]")
        raise ConfigError(
            f"{names[1]}: must be floats {wanted}, not {jnp.result_type(vectors)} {shape}."
        )
    _check_not_empty(names[1], shape)
    stand_ins = jnp.full(shape[:-1], NO_TOKEN, jnp.int32)
    if keep is None or cfg.pad_token_id is None or jnp.shape(keep) != shape[:-1]:
        return stand_ins
    return jnp.where(jnp.asarray(keep) != 0, stand_ins, jnp.int32(cfg.pad_token_id))


def check_range(name: str, ids: Array, first: int, stop: int) -> None:
    """Refuses values outside first .. stop - 1, if they are known."""
    is_known = isinstance(ids, np.ndarray | jax.Array) and not isinstance(ids, jax.core.Tracer)
    if not is_known or not ids.size:
        return
    ids = np.asarray(ids)
    if ids.min() < first or ids.max() >= stop:
        bad = ids.min() if ids.min() < first else ids.max()
        raise ConfigError(
            f"{name} holds {bad}: must be in {first}..{stop - 1}, the rows of the model's table."
        )


def rows_of(
    name: str,
    x: Any,
    input_ids: jax.Array,
    *,
    one: bool = False,
    like: str = "input_ids",
) -> Any:
    """Checks an argument with one value per token, [B, T], or also [1, T] if `one`.

    Returns a numpy or jax array.

    Raises:
      ValueError: it has another shape.
    """
    if x is None:
        return None
    x = x if hasattr(x, "ndim") else np.asarray(x)
    if x.shape != input_ids.shape and not (one and x.shape == (1, input_ids.shape[1])):
        raise ConfigError(f"{name} has shape {x.shape}: must match {like}, {input_ids.shape}.")
    return x


def check_keep(mask: Array) -> None:
    """Refuses an additive mask, whose zeros are the tokens to keep, if its values are known."""
    if isinstance(mask, jax.core.Tracer) or not mask.size:
        return
    least = float(np.asarray(mask).min())
    if least < 0:
        raise ConfigError(
            f"attention_mask holds {least:g}: must be 1 for tokens to keep and 0 for padding, not"
            " an additive mask."
        )


def position_ids_of(
    cfg: ModelConfig,
    input_ids_BT: jax.Array,
    position_ids_BT: jax.Array | None,
    attention_mask_BS: jax.Array | None,
    segment_ids_BS: jax.Array | None,
    *,
    skip_padding: bool = False,
    slots: Slots | None = None,
    name: str = "position_ids",
) -> jax.Array:
    """Returns position ids [B, T] or [1, T].

    They are those given, else restart in each segment, else count from zero.

    Args:
      cfg: the model's config.
      input_ids_BT: the tokens.
      position_ids_BT: the ids passed by the caller, or None.
      attention_mask_BS: over the slots of a cache; without a cache, over the tokens.
      segment_ids_BS: over the slots or tokens, likewise.
      skip_padding: whether to count only tokens that the attention mask keeps, so that left-padded
        prompts start at zero.
      slots: the slots of the tokens in a cache.
      name: name of the argument.
    """
    if slots is None:
        slots = Slots(input_ids_BT.shape[1])
    if position_ids_BT is not None:
        positions_BT = rows_of(name, position_ids_BT, input_ids_BT, one=True)
        if not jnp.issubdtype(positions_BT.dtype, jnp.integer):
            raise ConfigError(f"{name}: must be integers, not {positions_BT.dtype}.")
        span = cfg.position.span(cfg.max_length)
        if span is not None:
            check_range(name, positions_BT, span.start, span.stop)
        return jnp.asarray(positions_BT).astype(jnp.int32)
    if segment_ids_BS is not None:
        return slots.of_call(positions_in_segments(segment_ids_BS))
    if skip_padding and attention_mask_BS is not None:
        return slots.of_call(positions_from_mask(attention_mask_BS))
    return slots.columns()


def visibility_mask(
    attention_mask_BS: jax.Array | None,
    q_segment_ids_BT: jax.Array | None,
    k_segment_ids_BS: jax.Array | None,
    *,
    structure: Mask | None = None,
) -> Mask | None:
    """Combines the structure (causal or not) with padding and segments.

    Returns None if every token sees all others.
    """
    parts = [] if structure is None else [structure]
    if attention_mask_BS is not None:
        check_keep(attention_mask_BS)
        parts.append(masks.padding(attention_mask_BS.astype(bool)))
    if q_segment_ids_BT is not None:
        parts.append(masks.segments(q_segment_ids_BT, k_segment_ids_BS))
    if not parts:
        return None
    return functools.reduce(operator.and_, parts)


def last_token(input_ids_BT: jax.Array, pad_token_id: int | None) -> jax.Array:
    """Returns the column [B] of each row's last token that is not padding, wherever the padding is.

    Raises:
      ValueError: there are several rows, but no padding token that marks where they end.
    """
    batch, length = input_ids_BT.shape
    if pad_token_id is None:
        if batch > 1:
            raise ValueError(
                f"{batch} rows, but the config has no pad_token_id: set it, or classify row by row."
            )
        return jnp.full((batch,), length - 1, jnp.int32)
    columns_1T = jnp.arange(length, dtype=jnp.int32)[None]
    return jnp.max(jnp.where(input_ids_BT != pad_token_id, columns_1T, 0), axis=1)


def check_source(cache, encoder_output, decoder_input_ids, **over_source) -> list[jax.Array | None]:
    """Checks arrays [B, S] over the encoder's tokens.

    Raises:
      ConfigError: there is no encoder output, neither passed nor cached, or shapes do not fit it.
    """
    if encoder_output is None and (cache is None or cache[0].cross_k_BKSH is None):
        raise ConfigError(
            "encoder_output is None: must be passed, unless an earlier call has filled the cache."
        )
    batch = decoder_input_ids.shape[0]
    if encoder_output is None:
        tokens = jnp.zeros((batch, cache[0].cross_k_BKSH.shape[-2]), bool)
    elif encoder_output.shape[0] == batch:
        tokens = encoder_output[..., 0]
    else:
        raise ConfigError(
            f"decoder_input_ids has {batch} rows, not encoder_output's {encoder_output.shape[0]}."
        )
    checked = []
    for name, x in over_source.items():
        checked.append(rows_of(name, x, tokens, like="the encoder's tokens"))
    return checked
