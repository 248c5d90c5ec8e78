"""Rows of embedding tables, and position ids counted within each document."""

import jax
import jax.numpy as jnp


def take_rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """Computes `table[index]`, with NaN for an index that is negative or too large.

    Args:
      table: [V, ...], floating.
      index: integers of any shape.

    Returns:
      [*index.shape, ...] in the dtype of the table.
    """
    return jnp.asarray(table).at[index].get(mode="fill", wrap_negative_indices=False)


def positions_in_segments(segment_ids_BT: jax.Array) -> jax.Array:
    """Counts positions from zero in each segment, int32 [B, T].

    A packed document is then numbered as if it were alone.

        >>> positions_in_segments(jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
        [[0, 1, 2, 0, 1, 0]]

    Args:
      segment_ids_BT: integer ids, constant within a document; 0 marks padding.
    """
    _check_rank("segment_ids", segment_ids_BT)
    index_BT = jax.lax.broadcasted_iota(jnp.int32, segment_ids_BT.shape, 1)
    changed_BT = jnp.diff(segment_ids_BT, axis=1, prepend=segment_ids_BT[:, :1]) != 0
    return index_BT - jax.lax.cummax(jnp.where(changed_BT, index_BT, 0), axis=1)


def positions_from_mask(attention_mask_BT: jax.Array) -> jax.Array:
    """Counts positions over real tokens only, int32 [B, T].

    Padding on the left then does not shift a sentence.

        >>> positions_from_mask(jnp.array([[0, 0, 1, 1, 1]])).tolist()
        [[0, 0, 0, 1, 2]]

    Args:
      attention_mask_BT: bool or integer, nonzero = a real token; padding before the first has
        position 0.
    """
    _check_rank("attention_mask", attention_mask_BT)
    real_BT = attention_mask_BT.astype(bool).astype(jnp.int32)
    return jnp.maximum(jnp.cumsum(real_BT, axis=1) - 1, 0)


def _check_rank(name: str, array_BT: jax.Array) -> None:
    if array_BT.ndim != 2:
        raise ValueError(f"{name} has shape {array_BT.shape}: must be [batch, length].")
