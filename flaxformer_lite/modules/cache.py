"""The key-value cache of one layer: an explicit record that goes in and comes out, never hidden state."""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import Execution, StackConfig


class LayerCache(flax.struct.PyTreeNode):
    """Keys are stored rotated.

    Attributes:
      k_BKSH, v_BKSH: one slot a position; a sliding window of W keeps W slots, and position i lives in slot i mod W.
        Heads stand before slots: a head's slots lie side by side, and no step copies them to make them so. Those of a lone
        example have no axis B: XLA:CPU would drop it for every product, and copy what it has just written to.
      length: int32 scalar, the positions read so far, and so the slot of the next token.
      cross_k_BKSH, cross_v_BKSH: the encoder's, filled by the first call that sees the encoder's output.
    """

    k_BKSH: jax.Array
    v_BKSH: jax.Array
    length: jax.Array | np.ndarray
    cross_k_BKSH: jax.Array | None = None
    cross_v_BKSH: jax.Array | None = None


def empty(batch: int, kv_heads: int, length: int, head_dim: int, dtype: DTypeLike, *, window: int = 0) -> LayerCache:
    """An empty cache of one layer; its length is known to be zero within jit too, as it is numpy's."""
    shape = (batch,)[: batch != 1] + (kv_heads, min(length, window or length), head_dim)
    return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), np.zeros((), np.int32))


def empty_stack(cfg: StackConfig, execution: Execution, batch: int, length: int, d_model: int) -> list:
    """Empty caches of a stack: one per layer, or one for each kind, stacked over a leading Y axis where it scans."""
    dtype = jnp.dtype(execution.dtype)
    mixers = [layer.mixer for layer in cfg.pattern]
    kinds = [mixer and mixer.init_cache(batch, length, d_model, dtype) for mixer in mixers]
    if not cfg.scans(execution):
        return [kinds[cfg.kind(layer)] for layer in range(cfg.num_layers)]
    stacked = cfg.num_layers // len(kinds)

    def stack(x: Any) -> Any:
        return (np if isinstance(x, np.ndarray) else jnp).broadcast_to(x[None], (stacked, *x.shape))

    return jax.tree.map(stack, kinds)


def length_of(cache: Any) -> jax.Array:
    """Positions that a model's caches hold, int32 scalar; all layers agree."""
    layer = jax.tree.leaves(cache, is_leaf=lambda x: hasattr(x, "length"))[0]
    return layer.length if layer.length.ndim == 0 else layer.length[0]


def extend(
    cache: LayerCache, k_BTKH: jax.Array, v_BTKH: jax.Array, index: jax.Array | None, *, window: int, first: bool
) -> tuple[LayerCache, jax.Array, jax.Array, jax.Array | None, jax.Array | None]:
    """Writes T new positions, and gives what they may look at.

    Args:
      cache: of a layer.
      k_BTKH, v_BTKH: of the new positions, keys rotated.
      index: the slot of the first; None is the cache's length.
      window: of the layer; 0 sees everything.
      first: whether nothing lies before the new positions, which then see themselves alone.

    Returns:
      The cache, keys and values, and the slots of the new positions and of the keys (None: as they stand).
    """
    length, capacity = k_BTKH.shape[1], cache.k_BKSH.shape[-2]
    rolls = capacity == window
    start: Any = 0 if first else cache.length if index is None else index
    k_BKSH, v_BKSH = (
        append(old, new, start, rolls=rolls) for old, new in ((cache.k_BKSH, k_BTKH), (cache.v_BKSH, v_BTKH))
    )
    written = cache.replace(k_BKSH=k_BKSH, v_BKSH=v_BKSH, length=jnp.asarray(start + length, jnp.int32))
    if first:
        return written, k_BTKH, v_BTKH, None, None
    rows_T = start + jnp.arange(length, dtype=jnp.int32)
    if length == 1 or not rolls:
        return written, read(k_BKSH), read(v_BKSH), rows_T, slots(capacity, start + length - 1)
    # What the new positions write over, the first of them still see.
    k_index_S = jnp.concatenate([slots(capacity, start - 1), rows_T])
    k_BSKH, v_BSKH = (
        jnp.concatenate([read(old), new.astype(old.dtype)], axis=1)
        for old, new in ((cache.k_BKSH, k_BTKH), (cache.v_BKSH, v_BTKH))
    )
    return written, k_BSKH, v_BSKH, rows_T, k_index_S


def slots(capacity: int, index: jax.Array) -> jax.Array:
    """The position each slot of a rolling cache holds once `index` is written; negative where none has been.

    Slot s holds the largest position p <= index with p mod capacity = s. While index < capacity this is slot = position.
    """
    s = jnp.arange(capacity, dtype=jnp.int32)
    return index - jnp.mod(index - s, capacity)


def append(cache_BKSH: jax.Array, new_BTKH: jax.Array, index: jax.Array | int, *, rolls: bool = True) -> jax.Array:
    """Writes positions index .. index + T - 1 at their slots; where the cache rolls, it keeps the last of them.

    Args:
      cache_BKSH: keys or values of a layer.
      new_BTKH: those of the new positions.
      index: the first of them; an int is known before the program runs, which saves work.
      rolls: whether position i lives in slot i mod S; otherwise all must fit.
    """
    capacity, length = cache_BKSH.shape[-2], new_BTKH.shape[1]
    new_BKTH = heads_first(new_BTKH.astype(cache_BKSH.dtype))
    new_BKTH = jnp.squeeze(new_BKTH, 0) if cache_BKSH.ndim == 3 else new_BKTH
    if length > 1 and length >= capacity:
        first = index + length - capacity
        return jnp.roll(new_BKTH[..., length - capacity :, :], shift=first % capacity, axis=-2)
    if length > 1 and rolls and not isinstance(index, int):
        slots_T = (index + jnp.arange(length, dtype=jnp.int32)) % capacity
        return cache_BKSH.at[..., slots_T, :].set(new_BKTH)
    return jax.lax.dynamic_update_slice_in_dim(cache_BKSH, new_BKTH, index % capacity, axis=cache_BKSH.ndim - 2)


def read(cache_BKSH: jax.Array) -> jax.Array:
    """All slots in attention's order of axes, [B, S, K, H]."""
    return heads_first(cache_BKSH[None] if cache_BKSH.ndim == 3 else cache_BKSH)


def heads_first(x_BSKH: jax.Array) -> jax.Array:
    """From attention's order of axes to the cache's, and back."""
    return jnp.swapaxes(x_BSKH, 1, 2)
