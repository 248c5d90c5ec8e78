"""The model interface of generation, for decoders and encoder-decoders.

It reads a prompt, then one token at a time.
"""

import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.inference.own_model import OwnConfig, OwnModel
from flaxformer_lite.models.skeletons.build_layers import init_cache
from flaxformer_lite.nn.functions.deferred_logits import DeferredLogits
from flaxformer_lite.nn.modules.cache import Cache, repeat_rows, take_rows
from flaxformer_lite.types import Params

Generator = nn.Module | OwnModel
# The caches of all layers, or for an OwnModel the tokens themselves.
Caches = Cache | jax.Array


@flax.struct.dataclass
class PromptRows:
    """The part of the state that is constant while rows grow."""

    start_B: jax.Array | np.ndarray  # int32, the first slot of each row that holds a token
    # bool, the encoder's tokens; None for a decoder
    source_mask_BS: jax.Array | np.ndarray | None = None


def is_encoder_decoder(cfg: ModelConfig) -> bool:
    return bool(cfg.encoder_layers and cfg.decoder_layers)


@functools.partial(jax.jit, static_argnames=("model", "slots"))
def prefill(
    model: Generator,
    params: Params,
    tokens_BT: jax.Array,
    rows: PromptRows,
    source_BS: jax.Array | None,
    *,
    slots: int,
) -> tuple[jax.Array, Caches]:
    """Reads prompts, padded on the left, into new caches of `slots`.

    An encoder-decoder also takes the encoder's input `source_BS`. Returns the logits [B, V] of the
    next token, and the caches.
    """
    if isinstance(model, OwnModel):  # the tokens themselves take the place of caches
        tokens_BS = jnp.pad(tokens_BT, ((0, 0), (0, slots - tokens_BT.shape[1])))
        last = tokens_BT.shape[1] - 1
        return model.next_logits(params, tokens_BS, jnp.asarray(rows.start_B), last), tokens_BS
    cache = init_cache(model.cfg, tokens_BT.shape[0], slots)
    encoded_BSD = None
    if source_BS is not None:
        encoded_BSD = model.apply(
            {"params": params}, source_BS, attention_mask=rows.source_mask_BS, method="encode"
        )
    return _decode(model, params, tokens_BT, rows, cache, 0, tokens_BT.shape[1], encoded_BSD)


def advance(
    model: Generator,
    params: Params,
    tokens_B: jax.Array,
    rows: PromptRows,
    cache: Caches | None,
    slot: jax.Array,
    slots: int,
) -> tuple[jax.Array, Caches]:
    """Reads one token per row into slot `slot` of `slots`.

    Returns the logits [B, V] of the next, and the caches.
    """
    if isinstance(model, OwnModel):
        tokens_BS = jax.lax.dynamic_update_slice_in_dim(
            _tokens(cache), tokens_B[:, None], slot, axis=1
        )
        return model.next_logits(params, tokens_BS, jnp.asarray(rows.start_B), slot), tokens_BS
    return _decode(model, params, tokens_B[:, None], rows, cache, slot, slots, None)


def _tokens(cache: Caches | None) -> jax.Array:
    assert isinstance(cache, jax.Array), "an OwnModel has no caches"
    return cache


def _decode(
    model,
    params: Params,
    tokens_BT,
    rows: PromptRows,
    cache,
    first: jax.Array | int,
    columns: int,
    encoded_BSD,
):
    slots_1T = (first + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32))[None]
    positions_BT = jnp.maximum(slots_1T - rows.start_B[:, None], 0)
    mask_BS = jnp.arange(columns, dtype=jnp.int32)[None] >= rows.start_B[:, None]
    decode = functools.partial(
        model.apply, {"params": params}, method="decode", cache=cache, cache_index=first
    )
    if is_encoder_decoder(model.cfg):
        decoder_inputs = {"decoder_attention_mask": mask_BS, "decoder_position_ids": positions_BT}
        x_BTD, cache = decode(
            tokens_BT, encoded_BSD, attention_mask=rows.source_mask_BS, **decoder_inputs
        )
    else:
        x_BTD, cache = decode(tokens_BT, attention_mask=mask_BS, position_ids=positions_BT)
    projection = model.apply({"params": params}, x_BTD[:, -1:], method="project")
    return _logits(projection)[:, 0], cache


def _logits(projection: DeferredLogits) -> jax.Array:
    """Computes logits [B, 1, V] of one position as W x^T, hiding the transpose.

    XLA:CPU would otherwise compute x W^T, which takes a third longer for a few rows x.
    """
    kernel_VD = projection.kernel_VD.astype(projection.x.dtype)
    dots_VB = jnp.einsum(
        "VD,BD->VB", kernel_VD, projection.x[:, 0], preferred_element_type=jnp.float32
    )
    return projection.from_dots(jax.lax.optimization_barrier(dots_VB).T[:, None])


def batch_axis(cfg: ModelConfig) -> int:
    """Returns the batch axis of the caches: after the layers, if those are stacked."""
    return 1 if cfg.scan and not cfg.share_layers else 0


@functools.partial(jax.jit, static_argnames=("cfg", "times"))
def repeat(cfg: ModelConfig | OwnConfig, cache: Caches, times: int) -> Caches:
    """Repeats each example's caches `times` times in a row."""
    if isinstance(cfg, OwnConfig):
        return jnp.repeat(_tokens(cache), times, axis=0)
    return repeat_rows(cache, times, batch_axis(cfg))


def reorder(cfg: ModelConfig | OwnConfig, cache: Caches, rows: jax.Array) -> Caches:
    """Selects the caches of the given rows, in order."""
    if isinstance(cfg, OwnConfig):
        return jnp.take(_tokens(cache), rows, axis=0)
    return take_rows(cache, rows, batch_axis(cfg))
