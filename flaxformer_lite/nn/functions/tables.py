"""Lookup of table rows."""

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
