"""Begins and ends layers that read token by token: their state before a text, and after it."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, parts
from flaxformer_lite.nn.functions.delta_rule import causal_convolution
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import StateCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.documents import refuse_split_sequences, with_documents

RecurrentState = tuple[jax.Array, ...]


def begin_recurrence(
    cfg: parts.MixerConfig,
    execution: Execution,
    x_BTD: jax.Array,
    context: Context,
    cache: StateCache | None,
    sizes: Sequence[int],
    *,
    causal: bool,
) -> tuple[jax.Array, Context, RecurrentState]:
    """Returns the checked input, the context with its documents, and the initial state.

    The state comes from the cache; without one, and in slot 0, it is zeros of the given sizes.
    """
    reader = f"a recurrent layer ({cfg.name}) reads token by token"
    refuse_split_sequences(execution, reader)
    if not context.prepared:
        if isinstance(cache, StateCache) and context.index is None and not context.first:
            context = context.replace(index=cache.length)  # a mask is then over all slots
        context = with_documents(context, x_BTD, causal=causal)
    zeros = tuple(jnp.zeros((x_BTD.shape[0], size), x_BTD.dtype) for size in sizes)
    if cache is None:
        return x_BTD, context, zeros
    if not causal:
        raise ConfigError(
            "cache: an encoder's recurrent layer reads both ways, and cannot continue; leave it"
            " out."
        )
    if not (context.prepared and isinstance(cache, StateCache)):
        x_BTD = caches.check_layer(
            x_BTD, cache, context.index, first=context.first, kind=StateCache
        )
    held = [s.shape[-1] for s in cache.state]
    if held != list(sizes):
        raise ConfigError(
            f"cache has states of {held} numbers, where this layer ({cfg.name}) has {list(sizes)}:"
            " make it from the layer's own config."
        )
    if context.first:
        return x_BTD, context, zeros
    index = caches.start_of(cache, context.index, first=False)
    pairs = zip(zeros, cache.state, strict=True)
    return x_BTD, context, tuple(jnp.where(index == 0, zero, s) for zero, s in pairs)


def convolve_last(
    layer: ContextLayer, taps: int, x_BTU: jax.Array, last_BU: jax.Array, context: Context
) -> tuple[jax.Array, jax.Array]:
    """Returns weighted sums of the last `taps` tokens, and the last inputs as a state.

    Args:
      layer: the calling layer, which has the weights as its parameter `taps`, [U, 1, taps].
      taps: tokens in a sum.
      x_BTU: the input.
      last_BU: the state before it, of `taps - 1` tokens.
      context: says where documents start.
    """
    batch, _, channels = x_BTU.shape
    weights_U1W = layer.param(
        "taps",
        nn.initializers.normal(taps**-0.5),
        (channels, 1, taps),
        jnp.dtype(layer.execution.param_dtype),
    )
    sums_BTU, last_BSU = causal_convolution(
        x_BTU,
        weights_U1W[:, 0].astype(x_BTU.dtype),
        last_BU.reshape(batch, taps - 1, channels),
        context.starts_BT,
    )
    return sums_BTU, last_BSU.reshape(batch, -1)


def finish_recurrence(
    y_BTD: jax.Array, context: Context, cache: StateCache | None, state: RecurrentState
) -> tuple[jax.Array, StateCache | None]:
    """Returns the output, and the cache after it; None without one."""
    if cache is None:
        return y_BTD, None
    start = caches.start_of(cache, context.index, first=context.first)
    return y_BTD, cache.replace(state=state, length=jnp.asarray(start + y_BTD.shape[1], jnp.int32))
