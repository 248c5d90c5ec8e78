"""Attention over a split sequence, for which each device gathers all keys and values.

Each device computes the rows of its queries. As it then holds the keys and values of the whole
sequence, any mask, bias and implementation works unchanged.

If later rows see more columns, as under a causal mask, each device swaps the second half of its
rows with the device at the other end of the ring. Of 2n halves, device i then has halves 2i and
2n - 1 - 2i, so that all devices have the same work.

Reference: Grattafiori et al. 2024, section 3.3.2, context parallelism by gathered keys and values
(arXiv:2407.21783).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from flaxformer_lite.nn.attentions.arguments import Arguments, Bias, check_mask
from flaxformer_lite.nn.attentions.context_parallel.balance import is_imbalanced
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import Shards


def spread(attend: Callable) -> Callable:
    """Wraps `attend` for a sequence that `args.sharding` splits over devices.

    Values and gradients are the same, except that dropout draws different random numbers.

    Args:
      attend: an attention implementation that supports `q_index`.

    Returns:
      A function of the same arguments. It calls `attend` directly if the call has slots of a cache
      (`q_index` or `k_index`), or lengths that the number of devices does not divide.
    """

    def attend_spread(
        q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments, /
    ) -> jax.Array:
        ring = args.sharding.num_shards("T")
        T = q_BTNH.shape[1]
        S = k_BSKH.shape[1]
        if ring.count == 1 or T % ring.count or S % ring.count or args.has_slots:
            return attend(q_BTNH, k_BSKH, v_BSKH, args)
        mask = args.mask
        check_mask(mask, q_BTNH.shape[0], T, S)
        if mask is not None and not isinstance(mask, masks.Mask):
            mask = masks.dense(mask)
        inside = args.sharding.inside_shard()
        halves = 1
        if is_imbalanced(mask, T, S, ring.count):
            halves = 2

        def on_one_device(
            q_BTNH: jax.Array,
            k_BSKH: jax.Array,
            v_BSKH: jax.Array,
            rows_T: jax.Array,
            mask: masks.Mask | None,
            bias: Bias | jax.Array | None,
            dropout_key: jax.Array | None,
            sinks_N: jax.Array | None,
        ) -> jax.Array:
            k_BSKH = _gather(k_BSKH, rows_T, ring)
            v_BSKH = _gather(v_BSKH, rows_T, ring)
            parts = _exchange(jnp.split(q_BTNH, halves, axis=1), ring)
            outs = []
            for q_part, rows in zip(parts, _exchange(jnp.split(rows_T, halves), ring), strict=True):
                key = dropout_key
                if key is not None:
                    # By the first row, so that no two parts of the sequence draw the same numbers.
                    key = jax.random.fold_in(key, rows[0])
                local_args = dataclasses.replace(
                    args,
                    mask=mask,
                    bias=_of_rows(bias, rows),
                    dropout_key=key,
                    q_index=rows,
                    sinks_N=sinks_N,
                    sharding=inside,
                )
                outs.append(attend(q_part, k_BSKH, v_BSKH, local_args))
            return jnp.concatenate(_exchange(outs, ring), axis=1)

        on_devices = args.sharding.per_shard(
            on_one_device, ("BTNH", "BSKH", "BSKH", "T", "", "", "", "N"), "BTNH", over="T"
        )
        return on_devices(
            q_BTNH,
            k_BSKH,
            v_BSKH,
            jnp.arange(T, dtype=jnp.int32),
            mask,
            args.bias,
            args.dropout_key,
            args.sinks_N,
        )

    return attend_spread


def _exchange(parts: list[jax.Array], ring: Shards) -> list[jax.Array]:
    """Swaps the second part, if there is one, with the device at the other end of the ring."""
    mirror = [(i, ring.count - 1 - i) for i in range(ring.count)]
    swapped = [lax.ppermute(part, ring.mesh_axis, mirror) for part in parts[1:]]
    return [*parts[:1], *swapped]


def _gather(x_BSKH: jax.Array, rows_T: jax.Array, ring: Shards) -> jax.Array:
    """Gathers the parts of all devices in the order of the sequence.

    Unlike `lax.all_gather`, it does not replicate x over the mesh axes that are not split here.
    """
    size = x_BSKH.shape[1]
    before = [(i, (i - 1) % ring.count) for i in range(ring.count)]
    whole_BSKH = jnp.zeros((x_BSKH.shape[0], ring.count * size, *x_BSKH.shape[2:]), x_BSKH.dtype)
    for step in range(ring.count):
        place = (rows_T[0] // rows_T.shape[0] + step) % ring.count
        whole_BSKH = lax.dynamic_update_slice_in_dim(whole_BSKH, x_BSKH, place * size, axis=1)
        if step < ring.count - 1:
            x_BSKH = lax.ppermute(x_BSKH, ring.mesh_axis, before)
    return whole_BSKH


def _of_rows(bias: Bias | jax.Array | None, rows_T: jax.Array) -> Bias | jax.Array | None:
    """Returns the bias of these rows, numbered from zero, as `attend` expects it."""
    if callable(bias):
        return jax.tree_util.Partial(call_at_rows, bias, rows_T)
    if bias is None:
        return None
    return jnp.take(bias, rows_T, axis=2)


def call_at_rows(
    bias: Bias, chosen_rows: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    """Computes a bias by the numbers that this device's rows have in the whole sequence."""
    return bias(q_BTNH, jnp.take(chosen_rows, rows, mode="clip"), columns)
