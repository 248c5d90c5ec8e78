"""The cache slots that the tokens of a call take, and the checks on arrays over slots."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions.masks import Slot
from flaxformer_lite.nn.modules.cache import Cache, layers_of, length_of, nan_where
from flaxformer_lite.nn.modules.context import Context

OrNone = TypeVar("OrNone", jax.Array, jax.Array | None)
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


def place(
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
