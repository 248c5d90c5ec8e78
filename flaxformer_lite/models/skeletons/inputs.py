"""From the arguments users pass to the masks and positions that layers read; the three skeletons share it."""

import jax
import jax.numpy as jnp

from flaxformer_lite.functions import masks
from flaxformer_lite.functions.masks import Mask
from flaxformer_lite.functions.segments import positions_from_mask, positions_in_segments


def position_ids_of(
    input_ids_BT: jax.Array,
    position_ids_BT: jax.Array | None,
    attention_mask_BT: jax.Array | None,
    segment_ids_BT: jax.Array | None,
    *,
    skip_padding: bool = False,
) -> jax.Array:
    """Position ids [B, T] or [1, T]: those given, else restarting in each segment, else counting from zero.

    Args:
      skip_padding: count only what the attention mask keeps, so that left-padded prompts start at zero.
    """
    if position_ids_BT is not None:
        return position_ids_BT.astype(jnp.int32)
    if segment_ids_BT is not None:
        return positions_in_segments(segment_ids_BT)
    if skip_padding and attention_mask_BT is not None:
        return positions_from_mask(attention_mask_BT)
    return jnp.arange(input_ids_BT.shape[1], dtype=jnp.int32)[None]


def visibility(
    attention_mask_BS: jax.Array | None,
    q_segment_ids_BT: jax.Array | None,
    k_segment_ids_BS: jax.Array | None,
    *,
    structure: Mask | None = None,
) -> Mask | None:
    """The structure (causal or not) and-ed with padding and segments; None when everything sees everything."""
    parts = [structure]
    if attention_mask_BS is not None:
        parts.append(masks.padding(attention_mask_BS.astype(bool)))
    if q_segment_ids_BT is not None:
        parts.append(masks.segments(q_segment_ids_BT, k_segment_ids_BS))
    mask = None
    for part in parts:
        if part is not None:
            mask = part if mask is None else mask & part
    return mask


def last_token(input_ids_BT: jax.Array, pad_token_id: int | None) -> jax.Array:
    """The column [B] of each row's last token that is not padding, wherever the padding stands.

    Raises:
      ValueError: several rows, and no padding token to tell where they end.
    """
    batch, length = input_ids_BT.shape
    if pad_token_id is None:
        if batch > 1:
            raise ValueError(
                f"{batch} rows, but the config has no pad_token_id: set it, or classify one row at a time."
            )
        return jnp.full((batch,), length - 1, jnp.int32)
    columns_1T = jnp.arange(length, dtype=jnp.int32)[None]
    return jnp.max(jnp.where(input_ids_BT != pad_token_id, columns_1T, 0), axis=1)
