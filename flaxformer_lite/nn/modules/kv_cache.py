"""Writing and reading of the keys and values in a cache of attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions import quantized
from flaxformer_lite.nn.functions.masks import Slot
from flaxformer_lite.nn.modules.cache import LayerCache, MixerCache, start_of


class Seen(NamedTuple):
    """The keys and values that a call's tokens may attend to.

    Attributes:
      cache: the layer's cache, this call's tokens included; None without one.
      k_BSKH, v_BSKH: keys and values.
      q_index, k_index: the slots of the tokens and of the keys; None: 0, 1, 2 ...
    """

    cache: LayerCache | None
    k_BSKH: jax.Array
    v_BSKH: jax.Array
    q_index: jax.Array | None = None
    k_index: jax.Array | None = None


# What a layer leaves: its cache, or with it the keys and values of a window for later layers.
Left = MixerCache | dict[int, Seen] | None


def extend(
    cache: LayerCache, k_BTKH: jax.Array, v_BTKH: jax.Array, index: jax.Array | None, *, first: bool
) -> Seen:
    """Writes T new positions, and returns the keys and values that they may attend to.

    Args:
      cache: the cache of one layer.
      k_BTKH, v_BTKH: keys, already rotated, and values of the new positions.
      index: the slot of the first new position; None is the cache's length.
      first: whether the cache is empty, so that the new positions see only each other.
    """
    length = k_BTKH.shape[1]
    capacity = cache.k_BKSH.shape[-2]
    rolls = cache.rolls
    start = start_of(cache, index, first=first)
    written = _write(cache, k_BTKH, v_BTKH, start)
    written = written.replace(length=jnp.asarray(start + length, jnp.int32))
    if first:
        return Seen(written, k_BTKH, v_BTKH)
    rows_T = start + jnp.arange(length, dtype=jnp.int32)
    if not isinstance(capacity, int):  # symbolic: a caller's cache that this call fills
        return Seen(written, *_read(written, k_BTKH.dtype), rows_T)
    if length == 1 or not rolls:
        k_BSKH, v_BSKH = _read(written, k_BTKH.dtype)
        return Seen(written, k_BSKH, v_BSKH, rows_T, slots(capacity, start + length - 1))
    # The first new positions still see slots that the later ones overwrite.
    k_index_S = jnp.concatenate([slots(capacity, start - 1), rows_T])
    old_k_BSKH, old_v_BSKH = _read(cache, k_BTKH.dtype)
    k_BSKH = jnp.concatenate([old_k_BSKH, k_BTKH.astype(old_k_BSKH.dtype)], axis=1)
    v_BSKH = jnp.concatenate([old_v_BSKH, v_BTKH.astype(old_v_BSKH.dtype)], axis=1)
    return Seen(written, k_BSKH, v_BSKH, rows_T, k_index_S)


def _write(cache: LayerCache, k_BTKH: jax.Array, v_BTKH: jax.Array, start: Slot) -> LayerCache:
    """Writes keys and values from slot `start` on, with their scales if the cache is int8."""
    fields = {"k_BKSH": k_BTKH, "v_BKSH": v_BTKH}
    if cache.k_scale_BKS1 is not None:
        k_codes, k_scale = quantized.to_codes(k_BTKH, (-1,), jnp.int8)
        v_codes, v_scale = quantized.to_codes(v_BTKH, (-1,), jnp.int8)
        fields = {"k_BKSH": k_codes, "v_BKSH": v_codes}
        fields |= {"k_scale_BKS1": k_scale, "v_scale_BKS1": v_scale}
    appended = {}
    for name, new in fields.items():
        appended[name] = append(getattr(cache, name), new, start, rolls=cache.rolls)
    return cache.replace(**appended)


def _read(cache: LayerCache, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """Returns all slots of keys and values, [B, S, K, H], int8 dequantized to `dtype`."""
    k_BSKH = read(cache.k_BKSH)
    v_BSKH = read(cache.v_BKSH)
    if cache.k_scale_BKS1 is None or cache.v_scale_BKS1 is None:
        return k_BSKH, v_BSKH
    k_BSKH = k_BSKH.astype(jnp.float32) * read(cache.k_scale_BKS1)
    v_BSKH = v_BSKH.astype(jnp.float32) * read(cache.v_scale_BKS1)
    return k_BSKH.astype(dtype), v_BSKH.astype(dtype)


def slots(capacity: int, index: Slot) -> jax.Array:
    """Returns the position held by each slot of a rolling cache after writing `index`.

    The position of an empty slot is negative.

    Slot s holds the largest position p <= index with p mod capacity = s. While index < capacity,
    slot = position.
    """
    s = jnp.arange(capacity, dtype=jnp.int32)
    return index - jnp.mod(index - s, capacity)


def append(
    cache_BKSH: jax.Array, new_BTKH: jax.Array, index: Slot, *, rolls: bool = True
) -> jax.Array:
    """Writes positions index .. index + T - 1 to their slots.

    A rolling cache keeps the last S of them.

    Args:
      cache_BKSH: keys or values of a layer.
      new_BTKH: keys or values of the new positions.
      index: the first new position; a static int saves work.
      rolls: whether position i lives in slot i mod S; otherwise all positions must fit.
    """
    capacity = cache_BKSH.shape[-2]
    length = new_BTKH.shape[1]
    kept = (cache_BKSH.shape[-3], cache_BKSH.shape[-1])
    if new_BTKH.shape[2:] != kept:
        heads, width = new_BTKH.shape[2:]
        raise ConfigError(
            f"cache has {kept[0]} heads of {kept[1]}, where this layer's keys have {heads} of"
            f" {width}: it is another model's; make one with init_cache(model.cfg, ...)."
        )
    new_BKTH = heads_first(new_BTKH.astype(cache_BKSH.dtype))
    if cache_BKSH.ndim == 3:
        new_BKTH = jnp.squeeze(new_BKTH, 0)
    if not isinstance(capacity, int):  # a symbolic length cannot be compared
        return jax.lax.dynamic_update_slice_in_dim(
            cache_BKSH, new_BKTH, index, axis=cache_BKSH.ndim - 2
        )
    if length > 1 and length >= capacity:
        first = index + length - capacity
        return jnp.roll(new_BKTH[..., length - capacity :, :], shift=first % capacity, axis=-2)
    if length > 1 and rolls and not isinstance(index, int):
        # The slots may wrap around, which a slice cannot.
        slots_T = (index + jnp.arange(length, dtype=jnp.int32)) % capacity
        return cache_BKSH.at[..., slots_T, :].set(new_BKTH)
    # Modulo, as a slot behind the last would be clamped to it.
    return jax.lax.dynamic_update_slice_in_dim(
        cache_BKSH, new_BKTH, index % capacity, axis=cache_BKSH.ndim - 2
    )


def read(cache_BKSH: jax.Array) -> jax.Array:
    """Returns all slots in attention's order of axes, [B, S, K, H]."""
    if cache_BKSH.ndim == 3:
        cache_BKSH = cache_BKSH[None]
    return heads_first(cache_BKSH)


def heads_first(x_BSKH: jax.Array) -> jax.Array:
    """Converts from attention's order of axes to the cache's, or back."""
    return jnp.swapaxes(x_BSKH, 1, 2)
