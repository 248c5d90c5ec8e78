"""The key-value cache of one layer: an explicit record that is passed in and returned, never hidden state."""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import Execution, StackConfig


class LayerCache(flax.struct.PyTreeNode):
    """The keys, already rotated, and values of one layer.

    Attributes:
      k_BKSH, v_BKSH: one slot per position; a sliding window of W keeps W slots, with position i in slot i mod W. Heads
        come before slots, so that the slots of a head are contiguous and no step has to copy them. With batch size 1
        the batch axis is omitted, to save XLA:CPU a copy.
      length: int32 scalar, the number of positions stored so far, and so the slot of the next token.
      cross_k_BKSH, cross_v_BKSH: the encoder's, filled by the first call that gets the encoder's output.
    """

    k_BKSH: jax.Array
    v_BKSH: jax.Array
    length: jax.Array | np.ndarray
    cross_k_BKSH: jax.Array | None = None
    cross_v_BKSH: jax.Array | None = None


def empty(batch: int, kv_heads: int, length: int, head_dim: int, dtype: DTypeLike, *, window: int = 0) -> LayerCache:
    """Builds an empty cache of one layer; its length is a numpy zero, known to be zero inside jit too."""
    shape = (batch,)[: batch != 1] + (kv_heads, min(length, window or length), head_dim)
    return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), np.zeros((), np.int32))


def empty_stack(cfg: StackConfig, execution: Execution, batch: int, length: int, d_model: int) -> list:
    """Builds empty caches for a stack: one per layer or, if it scans, one per kind, stacked over a leading Y axis."""
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
    """Returns the number of positions that a model's caches hold, int32 scalar, the same in all layers."""
    layer = jax.tree.leaves(cache, is_leaf=lambda x: hasattr(x, "length"))[0]
    return layer.length if layer.length.ndim == 0 else layer.length[0]


def capacity_of(cache: Any) -> int:
    """Returns the number of slots of the longest cache in a layer's or a stack's, 0 if there is none."""
    layers = jax.tree.leaves(cache, is_leaf=lambda x: isinstance(x, LayerCache))
    return max((c.k_BKSH.shape[-2] for c in layers if isinstance(c, LayerCache)), default=0)


def extend(
    cache: LayerCache, k_BTKH: jax.Array, v_BTKH: jax.Array, index: jax.Array | None, *, window: int, first: bool
) -> tuple[LayerCache, jax.Array, jax.Array, jax.Array | None, jax.Array | None]:
    """Writes T new positions, and returns the keys and values that they may attend to.

    Args:
      cache: the cache of one layer.
      k_BTKH, v_BTKH: keys, already rotated, and values of the new positions.
      index: the slot of the first new position; None is the cache's length.
      window: the layer's sliding window; 0 sees everything.
      first: whether the cache is empty, so that the new positions see only each other.

    Returns:
      The cache, keys and values, and the slots of the new positions and of the keys (None: 0, 1, 2 ...).
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
    # The first new positions still see slots that the later ones overwrite.
    k_index_S = jnp.concatenate([slots(capacity, start - 1), rows_T])
    k_BSKH, v_BSKH = (
        jnp.concatenate([read(old), new.astype(old.dtype)], axis=1)
        for old, new in ((cache.k_BKSH, k_BTKH), (cache.v_BKSH, v_BTKH))
    )
    return written, k_BSKH, v_BSKH, rows_T, k_index_S


def slots(capacity: int, index: jax.Array) -> jax.Array:
    """Returns the position held by each slot of a rolling cache after writing `index`; negative for empty slots.

    Slot s holds the largest position p <= index with p mod capacity = s. While index < capacity, slot = position.
    """
    s = jnp.arange(capacity, dtype=jnp.int32)
    return index - jnp.mod(index - s, capacity)


def append(cache_BKSH: jax.Array, new_BTKH: jax.Array, index: jax.Array | int, *, rolls: bool = True) -> jax.Array:
    """Writes positions index .. index + T - 1 to their slots; a rolling cache keeps the last S of them.

    Args:
      cache_BKSH: keys or values of a layer.
      new_BTKH: keys or values of the new positions.
      index: the first new position; a static int saves work.
      rolls: whether position i lives in slot i mod S; otherwise all positions must fit.
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
    """Returns all slots in attention's order of axes, [B, S, K, H]."""
    return heads_first(cache_BKSH[None] if cache_BKSH.ndim == 3 else cache_BKSH)


def heads_first(x_BSKH: jax.Array) -> jax.Array:
    """Converts from attention's order of axes to the cache's, or back."""
    return jnp.swapaxes(x_BSKH, 1, 2)
