"""The key-value cache of one layer: an explicit record that goes in and comes out, never hidden state."""

import flax
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig


@flax.struct.dataclass
class LayerCache:
    """Keys are stored rotated.

    Attributes:
      k_BKSH, v_BKSH: one slot a position; a sliding window of W keeps W slots, and position i lives in slot i mod W.
        Heads stand before slots: a head's slots lie side by side, and no step copies them to make them so. Those of a lone
        example have no axis B: XLA:CPU would drop it for every product, and copy what it has just written to.
      cross_k_BKSH, cross_v_BKSH: the encoder's, filled by the first call that sees the encoder's output.
    """

    k_BKSH: jax.Array
    v_BKSH: jax.Array
    cross_k_BKSH: jax.Array | None = None
    cross_v_BKSH: jax.Array | None = None


def init_cache(cfg: ModelConfig, batch: int, length: int) -> list[LayerCache] | LayerCache:
    """Empty caches for `length` positions: one per layer, or one stacked over a leading Y axis where the config scans.

    Args:
      cfg: the decoder's.
      batch: B; the caches of one example have no such axis, see `LayerCache`.
      length: S, prompt and continuation together.
    """
    cfg, dtype = cfg.of_decoder, jnp.dtype(cfg.dtype)

    def empty(window: int) -> LayerCache:
        shape = (batch,)[: batch != 1] + (cfg.kv_heads, min(length, window or length), cfg.head_width)
        return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    period = len(cfg.windows)
    if not cfg.scan or cfg.share_layers:
        return [empty(cfg.windows[layer % period]) for layer in range(cfg.decoder_layers)]
    group = [empty(window) for window in cfg.windows]
    return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (cfg.decoder_layers // period, *x.shape)), group)


def slots(capacity: int, index: jax.Array) -> jax.Array:
    """The position each slot of a rolling cache holds once `index` is written; negative where none has been.

    Slot s holds the largest position p <= index with p mod capacity = s. While index < capacity this is slot = position.
    """
    s = jnp.arange(capacity, dtype=jnp.int32)
    return index - jnp.mod(index - s, capacity)


def append(cache_BKSH: jax.Array, new_BTKH: jax.Array, index: jax.Array) -> jax.Array:
    """Writes one position (T = 1) at its slot, or a whole prompt from position 0, of which a window keeps the tail."""
    capacity, length = cache_BKSH.shape[-2], new_BTKH.shape[1]
    new_BKTH = heads_first(new_BTKH.astype(cache_BKSH.dtype))
    new_BKTH = jnp.squeeze(new_BKTH, 0) if cache_BKSH.ndim == 3 else new_BKTH
    if length > 1 and length >= capacity:
        return jnp.roll(new_BKTH[..., length - capacity :, :], shift=(length - capacity) % capacity, axis=-2)
    return jax.lax.dynamic_update_slice_in_dim(cache_BKSH, new_BKTH, jnp.mod(index, capacity), axis=cache_BKSH.ndim - 2)


def read(cache_BKSH: jax.Array) -> jax.Array:
    """All slots in attention's order of axes, [B, S, K, H]."""
    return heads_first(cache_BKSH[None] if cache_BKSH.ndim == 3 else cache_BKSH)


def heads_first(x_BSKH: jax.Array) -> jax.Array:
    """From attention's order of axes to the cache's, and back."""
    return jnp.swapaxes(x_BSKH, 1, 2)
