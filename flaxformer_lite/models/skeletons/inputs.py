"""From the arguments users pass to the masks and positions that layers read; the three skeletons share it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.functions import masks
from flaxformer_lite.functions.masks import Mask
from flaxformer_lite.functions.segments import positions_from_mask, positions_in_segments
from flaxformer_lite.models.skeletons.slots import Slots


def ids_of(name: str, ids: Any, size: int, *, axes: str = "[batch, length]") -> jax.Array:
    """Integer ids as an array, checked where their values are known; inside jit those out of range make NaN.

    Args:
      name: of the argument.
      ids: an array, or lists of one length.
      size: ids are 0 .. size - 1; what has no table passes 0, and any number goes.
      axes: that it must have.

    Raises:
      ValueError: not integers, another number of axes, an id out of range.
    """
    if not hasattr(ids, "ndim"):
        ids = np.asarray(ids)
    if ids.ndim != axes.count(",") + 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ConfigError(f"{name}: integer ids {axes}, not {ids.dtype} {ids.shape}.")
    if size:
        check_range(name, ids, 0, size)
    return ids if isinstance(ids, jax.Array) else jnp.asarray(ids)


def check_range(name: str, ids: Any, first: int, stop: int) -> None:
    """Refuses values outside first .. stop - 1, where they are known."""
    known = isinstance(ids, np.ndarray) or (isinstance(ids, jax.Array) and not isinstance(ids, jax.core.Tracer))
    if not known or not ids.size:
        return
    ids = np.asarray(ids)
    if ids.min() < first or ids.max() >= stop:
        bad = ids.min() if ids.min() < first else ids.max()
        raise ConfigError(f"{name} holds {bad}: must be in {first}..{stop - 1}, the rows of the model's table.")


def rows_of(name: str, x: Any, input_ids: jax.Array, *, one: bool = False, like: str = "input_ids") -> Any:
    """What is said of each token, an array [B, T] of numpy's or jax's; [1, T] too where `one` row may stand for all.

    Raises:
      ValueError: another shape.
    """
    if x is None:
        return None
    x = x if hasattr(x, "ndim") else np.asarray(x)
    if x.shape != input_ids.shape and not (one and x.shape == (1, input_ids.shape[1])):
        raise ConfigError(f"{name} has shape {x.shape}: must be that of {like}, {input_ids.shape}.")
    return x


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
    """Position ids [B, T] or [1, T]: those given, else restarting in each segment, else counting from zero.

    Args:
      cfg: whose encoding they are for.
      input_ids_BT: the tokens.
      position_ids_BT: as given.
      attention_mask_BS: over the slots of a cache; without one over the tokens.
      segment_ids_BS: the same.
      skip_padding: count only what the attention mask keeps, so that left-padded prompts start at zero.
      slots: of the tokens, in a cache.
      name: of the argument.
    """
    slots = Slots(input_ids_BT.shape[1]) if slots is None else slots
    if position_ids_BT is not None:
        positions_BT = rows_of(name, position_ids_BT, input_ids_BT, one=True)
        if (span := cfg.position.span(cfg.max_length)) is not None:
            check_range(name, positions_BT, span.start, span.stop)
        return jnp.asarray(positions_BT).astype(jnp.int32)
    if segment_ids_BS is not None:
        return slots.part(positions_in_segments(segment_ids_BS))
    if skip_padding and attention_mask_BS is not None:
        return slots.part(positions_from_mask(attention_mask_BS))
    return slots.columns()


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


def check_source(cache, encoder_output, decoder_input_ids, **over_source) -> list[jax.Array | None]:
    """Arrays [B, S] that speak of the encoder's tokens, checked.

    Raises:
      ConfigError: no encoder's output, neither now nor in the caches; shapes that do not fit it.
    """
    if encoder_output is None and (cache is None or cache[0].cross_k_BKSH is None):
        raise ConfigError(
            "encoder_output is None: only a cache that a call with encoder_output has filled can do without."
        )
    batch = decoder_input_ids.shape[0]
    if encoder_output is None:
        tokens = jnp.zeros((batch, cache[0].cross_k_BKSH.shape[-2]), bool)
    elif encoder_output.shape[0] == batch:
        tokens = encoder_output[..., 0]
    else:
        raise ConfigError(
            f"decoder_input_ids has {batch} rows, the encoder's output {encoder_output.shape[0]}: one each."
        )
    return [rows_of(name, x, tokens, like="the encoder's tokens") for name, x in over_source.items()]
