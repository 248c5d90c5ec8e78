"""Exchanges rows between devices, a different number between each pair of them."""

import functools

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.linear_call import linear_call
from flaxformer_lite.nn.functions.sharding import ActivationSharding

MeshAxis = str | tuple[str, ...]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def exchange(
    x_MD: jax.Array, counts_PP: jax.Array, rows: int, axis: MeshAxis, sharding: ActivationSharding
) -> jax.Array:
    """Sends rows to the other devices of a mesh axis, inside `jax.shard_map`.

    Args:
      x_MD: the rows that this device sends: those for device 0 first, then those for device 1, and
        so on. Any rows after these are not sent.
      counts_PP: int32, the number of rows that each device (first axis) sends to each device
        (second axis); the same array on all devices.
      rows: the number of rows of the result, at least as many as any device receives. One device
        sends another at most max(M, rows) / P rows.
      axis: the name of the mesh axis, or several names.
      sharding: where the rows live; on CPUs all parts have the size of the largest one allowed.

    Returns:
      [rows, D]: the rows from device 0 first, then those from device 1, and so on, then zeros.
    """
    me = jax.lax.axis_index(axis)
    y_RD = jnp.zeros((rows, x_MD.shape[1]), x_MD.dtype)
    if ops_of(sharding).exchanges_equal_parts:
        return _in_equal_parts(x_MD, y_RD, counts_PP, me, axis)
    return jax.lax.ragged_all_to_all(
        x_MD,
        y_RD,
        _starts(counts_PP[me]),
        counts_PP[me],
        _starts(counts_PP)[me],
        counts_PP[:, me],
        axis_name=axis,
    )


@exchange.defjvp
def _exchange_jvp(
    rows: int,
    axis: MeshAxis,
    sharding: ActivationSharding,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    x_MD, counts_PP = primals
    d_x_MD, _ = tangents

    def push(counts_PP: jax.Array, d_x_MD: jax.Array) -> jax.Array:
        return exchange(d_x_MD, counts_PP, rows, axis, sharding)

    def pull(counts_PP: jax.Array, d_y_RD: jax.Array) -> jax.Array:
        return exchange(d_y_RD, counts_PP.T, len(x_MD), axis, sharding)

    y_RD = exchange(x_MD, counts_PP, rows, axis, sharding)
    return y_RD, linear_call(push, pull, counts_PP, d_x_MD, y_RD)


def _in_equal_parts(
    x_MD: jax.Array, y_RD: jax.Array, counts_PP: jax.Array, me: jax.Array, axis: MeshAxis
) -> jax.Array:
    part = max(len(x_MD), len(y_RD)) // len(counts_PP)
    row_1C = jnp.arange(part)[None]
    sent_PCD = x_MD.at[_starts(counts_PP[me])[:, None] + row_1C].get(mode="clip")
    received_PCD = jax.lax.all_to_all(sent_PCD, axis, 0, 0)
    sizes_P1 = counts_PP[:, me][:, None]
    place_PC = jnp.where(row_1C < sizes_P1, _starts(counts_PP[:, me])[:, None] + row_1C, len(y_RD))
    return y_RD.at[place_PC].set(received_PCD, mode="drop")


def _starts(sizes_P: jax.Array) -> jax.Array:
    """Returns where each part starts if they lie one after the other along the first axis."""
    return jnp.cumsum(sizes_P, axis=0) - sizes_P
