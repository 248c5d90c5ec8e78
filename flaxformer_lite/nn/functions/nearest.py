"""Nearest neighbors by cosine."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.pooling import to_unit_length


def nearest(table_VD: jax.Array, vector: jax.Array, /, k: int = 10) -> tuple[jax.Array, jax.Array]:
    """Finds the rows of a table with the largest cosines to a vector.

    >>> table = jnp.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> cosines, rows = nearest(table, jnp.array([1.0, 0.1]), 2)
    >>> rows.tolist()
    [0, 2]

    Args:
      table_VD: any floating dtype; a row of zeros has the cosine 0.
      vector: the query, or several [..., D].
      k: how many; at most V.

    Returns:
      Cosines, float32 [..., k] in descending order, and numbers of rows, int32 [..., k].

    Raises:
      ValueError: the widths differ, or the table has fewer than k rows.
    """
    shapes = f"table {jnp.shape(table_VD)}, vector {jnp.shape(vector)}"
    if len(jnp.shape(table_VD)) != 2 or jnp.shape(vector)[-1:] != jnp.shape(table_VD)[-1:]:
        raise ValueError(f"{shapes}: must be [V, D] and [..., D], of the same width D.")
    if not isinstance(k, int | np.integer) or not 0 <= k <= len(table_VD):
        raise ValueError(f"k={k}: must be from 0 to the {len(table_VD)} rows of the table.")
    query, table_VD = (to_unit_length(jnp.asarray(x, jnp.float32)) for x in (vector, table_VD))
    return jax.lax.top_k(jnp.matmul(query, table_VD.T, precision=jax.lax.Precision.HIGHEST), k)
