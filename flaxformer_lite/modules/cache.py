"""The key-value cache of one layer: an explicit record that goes in and comes out, never hidden state."""

import flax
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig


@flax.struct.dataclass
class LayerCache:
    """Keys are stored rotated.

    Attributes:
      k_BSKH, v_BSKH: one slot a position; a sliding window of W keeps W slots, and position i lives in slot i mod W.
      cross_k_BSKH, cross_v_BSKH: the encoder's, filled by the first call that sees the encoder's output.
    """

    k_BSKH: jax.Array
    v_BSKH: jax.Array
    cross_k_BSKH: jax.Array | None = None
    cross_v_BSKH: jax.Array | None = None


def init_cache(cfg: ModelConfig, batch: int, length: int) -> list[LayerCache] | LayerCache:
    """Empty caches for `length` positions: one per layer, or one stacked over a leading Y axis where the config scans.

    Args:
      cfg: the decoder's.
      batch: B.
      length: S, prompt and continuation together.
    """
    cfg, dtype = cfg.of_decoder, jnp.dtype(cfg.dtype)

    def empty(window: int) -> LayerCache:
        shape = (batch, min(length, window or length), cfg.kv_heads, cfg.head_width)
        return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    period = len(cfg.windows)
    if not cfg.scan:
        return [empty(cfg.windows[layer % period]) for layer in range(cfg.decoder_layers)]
    group = [empty(window) for window in cfg.windows]
    return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (cfg.decoder_layers // period, *x.shape)), group)


def slots(capacity: int, index: jax.Array) -> jax.Array:
    """The position each slot of a rolling cache holds once `index` is written; negative where none has been.

    Slot s holds the largest position p <= index with p mod capacity = s. While index < capacity this is slot = position.
    """
    s = jnp.arange(capacity, dtype=jnp.int32)
    return index - jnp.mod(index - s, capacity)


def append(cache_BSKH: jax.Array, new_BTKH: jax.Array, index: jax.Array) -> jax.Array:
    """Writes one position (T = 1) at its slot, or a whole prompt from position 0, of which a window keeps the tail."""
    capacity, length = cache_BSKH.shape[1], new_BTKH.shape[1]
    new_BTKH = new_BTKH.astype(cache_BSKH.dtype)
    if length > 1 and length >= capacity:
        return jnp.roll(new_BTKH[:, length - capacity :], shift=(length - capacity) % capacity, axis=1)
    return jax.lax.dynamic_update_slice_in_dim(cache_BSKH, new_BTKH, jnp.mod(index, capacity), axis=1)
