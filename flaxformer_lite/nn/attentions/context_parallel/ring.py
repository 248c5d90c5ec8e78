"""Ring attention: queries stay on their device, keys and values travel around a ring of devices.

The sequence is split over n devices. Keys, values and the numbers of their columns pass from device
to device, and every device adds the columns that its rows see to their softmax, block by block as
in blockwise.py. In the backward pass, keys and values travel once more, together with their
gradients, which end on the device of those keys. No device ever holds more than two parts of the
keys, and no step of the ring saves anything for the backward pass.

Blocks that the mask rules out are not computed, and parts that no device sees are not sent: under a
sliding window a device receives its neighbors' parts only.

If later rows see more columns, as under a causal mask, the rows are cut into 2n parts, and device i
holds two of them, one from the beginning and one from the end: parts 2i and 2n - 1 - 2i. In each
step of the ring, every device then compares two pairs of parts, so that all have the same work.

Reference: Liu et al. 2023, Ring Attention (arXiv:2310.01889); for the balance of causal work,
Brandon et al. 2023, Striped Attention (arXiv:2311.09431), section 3.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from flaxformer_lite.nn.attentions import blockwise
from flaxformer_lite.nn.attentions.arguments import Arguments, Bias, check_mask
from flaxformer_lite.nn.attentions.blockwise import BiasTree, Given, SoftmaxState
from flaxformer_lite.nn.attentions.context_parallel.balance import is_imbalanced
from flaxformer_lite.nn.attentions.context_parallel.gather import call_at_rows
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.device_ops import ATTENTION, name_arrays
from flaxformer_lite.nn.functions.linear_call import forbid_reverse_mode, linear_call
from flaxformer_lite.nn.functions.sharding import Shards
from flaxformer_lite.types import Tree

BLOCK_ROWS = 256  # rows and columns of a block, as blockwise has


class Route(NamedTuple):
    """The parts of the keys that each device of a ring receives.

    Device i first receives the part of device `i - first`, then those of the devices before that
    one, `parts` in all.
    """

    first: int
    parts: int


class RingPlan(NamedTuple):
    """The constants of a call.

    Attributes:
      blocks: the plan of blockwise attention on each device.
      ring: the devices.
      route: the parts that each device receives.
      length: S, the number of columns on all devices together.
      dropout_strides: for rows and for columns, the tokens for which the number of dropout's block
        grows by one: the size of a block, or 1 if the blocks of a device are not blocks of the
        whole sequence.
    """

    blocks: blockwise.BlockPlan
    ring: Shards
    route: Route
    length: int
    dropout_strides: tuple[int, int]


class KeyValues(NamedTuple):
    """A part of the keys and values, with the increasing numbers of its columns."""

    k_BSKH: jax.Array
    v_BSKH: jax.Array
    columns_S: jax.Array


class QueryRows(NamedTuple):
    """Inputs that stay on a device and have no gradient: mask, row numbers, and dropout key."""

    mask: masks.Mask | None
    rows_T: jax.Array
    dropout_key: jax.Array | None


# queries, the device's own part of the keys and values, the bias, the sinks, and the query rows
_Primals = tuple[jax.Array, KeyValues, BiasTree, jax.Array | None, QueryRows]
# the primals, the output, and the logarithms of the sums of exponentials
_Saved = tuple[jax.Array, KeyValues, BiasTree, jax.Array | None, QueryRows, jax.Array, jax.Array]
_Carry = tuple[SoftmaxState, KeyValues]
_KeyValueGrads = tuple[jax.Array, jax.Array]  # gradients or tangents of a part's keys and values
_QueryGrads = tuple[jax.Array, list[jax.Array]]  # gradients of queries and of the bias


def attend(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    args: Arguments,
    /,
    *,
    q_block: int = BLOCK_ROWS,
    k_block: int = BLOCK_ROWS,
) -> jax.Array:
    """Computes `dense.attend` for sequences that `args.sharding` splits over devices.

    Dropout draws the same random numbers as blockwise attention on one device if the parts of each
    device are whole blocks, and different ones otherwise.

    Args:
      q_BTNH, k_BSKH, v_BSKH, args: as in `dispatch.attention`.
      q_block, k_block: rows and columns of a block.

    Returns:
      Array [B, T, N, H] in the dtype of the values, with the same derivatives as blockwise
      attention, which also computes calls with slots of a cache, or with lengths that the number of
      devices does not divide.
    """
    ring = args.sharding.num_shards("T")
    T = q_BTNH.shape[1]
    S = k_BSKH.shape[1]
    if ring.count == 1 or T % ring.count or S % ring.count or args.has_slots:
        return blockwise.attend(q_BTNH, k_BSKH, v_BSKH, args, q_block=q_block, k_block=k_block)
    mask = args.mask
    check_mask(mask, q_BTNH.shape[0], T, S)
    if mask is not None and not isinstance(mask, masks.Mask):
        mask = masks.dense(mask)
    scale = args.resolve(q_BTNH, k_BSKH, v_BSKH).scale
    route = route_of(mask, T, S, ring.count)
    # Under a sliding window, a device with mirrored rows would need more than its neighbors' parts.
    mirrored = (
        route.parts == ring.count
        and S % (2 * ring.count) == 0
        and is_imbalanced(mask, T, S, ring.count)
    )
    halves = 1
    if mirrored:
        halves = 2
        route = Route(0, ring.count)
    q_part = T // ring.count // halves
    k_part = S // ring.count // halves
    q_block = min(q_block, q_part)
    k_block = min(k_block, k_part)
    dropout_rate = 0.0
    dropout_key = None
    if args.drops:
        dropout_rate = args.dropout_rate
        dropout_key = args.dropout_key
    blocks = blockwise.BlockPlan(
        scale, args.softcap, dropout_rate, q_block, k_block, args.sharding.inside_shard()
    )
    strides = (_dropout_stride(q_part, q_block), _dropout_stride(k_part, k_block))
    plan = RingPlan(blocks, ring, route, S, strides)
    bias = args.bias
    if callable(bias):
        bias = blockwise.as_pytree(bias, q_BTNH[:, :q_block], k_block)

    def on_one_device(
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        rows_T: jax.Array,
        columns_S: jax.Array,
        mask: masks.Mask | None,
        bias: BiasTree,
        sinks_N: jax.Array | None,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        part = KeyValues(k_BSKH, v_BSKH, columns_S)
        if mirrored:
            device = rows_T[0] // rows_T.shape[0]
            q_BTNH, part, rows_T = jax.tree.map(
                functools.partial(_mirror, device=device, ring=ring), (q_BTNH, part, rows_T)
            )
        rows = QueryRows(mask, rows_T, dropout_key)
        out_BTNH = _attend(plan, q_BTNH, part, _bias_at_rows(bias, rows_T), sinks_N, rows)
        if mirrored:
            out_BTNH = _mirror_back(out_BTNH, device, ring)
        return out_BTNH

    on_devices = args.sharding.per_shard(
        on_one_device, ("BTNH", "BSKH", "BSKH", "T", "S", "", "", "N", ""), "BTNH", over="T"
    )
    sinks_N = None
    if args.sinks_N is not None:
        sinks_N = args.sinks_N.astype(jnp.float32)
    return on_devices(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        jnp.arange(T, dtype=jnp.int32),
        jnp.arange(S, dtype=jnp.int32),
        mask,
        bias,
        sinks_N,
        dropout_key,
    )


def _dropout_stride(part: int, block: int) -> int:
    """Returns the tokens for which the number of dropout's block grows by one."""
    if part % block:
        return 1
    return block


def route_of(mask: masks.Mask | None, T: int, S: int, count: int) -> Route:
    """Returns the shortest route on which every part of the keys reaches the rows that see it."""
    if mask is None:
        return Route(0, count)
    rows = T // count
    columns = S // count
    needed = set()  # the distances on the ring between a device and those whose parts it sees
    for device in range(count):
        first, last = mask.column_bounds(device * rows, (device + 1) * rows, S)
        for other in range(count):
            if first < (other + 1) * columns and last > other * columns:
                needed.add((device - other) % count)
    # The route begins after the longest gap between distances: what lies in the other gaps is sent,
    # though no device sees it.
    distances = sorted(needed) or [0]
    gaps = []
    for i, distance in enumerate(distances):
        gaps.append((distance - distances[i - 1] - 1) % count)
    gap = max(gaps)
    first = distances[gaps.index(gap)]
    if first > count // 2:
        first -= count
    return Route(first, count - gap)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(
    plan: RingPlan,
    q_BTNH: jax.Array,
    part: KeyValues,
    bias: BiasTree,
    sinks_N: jax.Array | None,
    rows: QueryRows,
) -> jax.Array:
    return _forward(plan, q_BTNH, part, bias, sinks_N, rows)[0]


@_attend.defjvp
def _attend_jvp(
    plan: RingPlan, primals: _Primals, tangents: _Primals
) -> tuple[jax.Array, jax.Array]:
    out_BTNH, saved = _forward(plan, *primals)
    d_q, d_part, d_bias, d_sinks_N, _ = tangents
    d_out_BTNH = linear_call(
        functools.partial(_tangent, plan),
        functools.partial(_backward, plan),
        saved,
        (d_q, d_part.k_BSKH, d_part.v_BSKH, blockwise.floats(d_bias), d_sinks_N),
        like=out_BTNH,
    )
    return out_BTNH, d_out_BTNH


def _forward(
    plan: RingPlan,
    q_BTNH: jax.Array,
    local_part: KeyValues,
    bias: BiasTree,
    sinks_N: jax.Array | None,
    rows: QueryRows,
) -> tuple[jax.Array, _Saved]:
    padded_BTNH = _pad(q_BTNH, plan.blocks.q_block)
    numbers = jnp.arange(padded_BTNH.shape[1] // plan.blocks.q_block)

    def add(states: SoftmaxState, part: KeyValues) -> SoftmaxState:
        """Adds the columns of a part to the state of each block of rows."""
        k_BSKH, v_BSKH, given = _block_inputs(plan, rows, part)

        def add_to_block(
            _: None, item: tuple[jax.Array, SoftmaxState]
        ) -> tuple[None, SoftmaxState]:
            i, state = item
            bias_of_part = _bias_at_columns(bias, part.columns_S)
            return None, blockwise.add_columns(
                plan.blocks, padded_BTNH, k_BSKH, v_BSKH, bias_of_part, given, i, state
            )

        return lax.scan(add_to_block, None, (numbers, states))[1]

    def step(carry: _Carry, _: None) -> tuple[_Carry, None]:
        states, part = carry
        next_part = _rotate(plan.ring, part)  # is sent while this part is computed
        return (add(states, part), next_part), None

    start = blockwise.no_columns(q_BTNH, local_part.v_BSKH, plan.blocks.q_block, sinks_N)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (numbers.size, *x.shape)), start)
    part = _rotate(plan.ring, local_part, plan.route.first)
    # The last part is computed after the loop, as nobody needs it sent on.
    (states, part), _ = lax.scan(step, (states, part), length=plan.route.parts - 1)
    states = add(states, part)
    out, lse = jax.vmap(functools.partial(blockwise.finish, v_BSKH=local_part.v_BSKH))(states)
    out_BTNH, lse = name_arrays(ATTENTION, blockwise.join(out)[:, : q_BTNH.shape[1]], lse)
    return out_BTNH, (q_BTNH, local_part, bias, sinks_N, rows, out_BTNH, lse)


def _backward(plan: RingPlan, saved: _Saved, d_out_BTNH: jax.Array) -> blockwise.Inputs:
    """Computes the gradients, sending keys and values around again together with theirs."""
    q_BTNH, local_part, bias, sinks_N, *_ = saved
    d_out_BTNH = _pad(d_out_BTNH, plan.blocks.q_block)

    def step(
        carry: tuple[_QueryGrads, KeyValues, _KeyValueGrads], _: None
    ) -> tuple[tuple[_QueryGrads, KeyValues, _KeyValueGrads], None]:
        d_queries, part, d_part = carry
        next_part = _rotate(plan.ring, part)
        d_queries, d_part = add(d_queries, part, d_part)[:2]
        return (d_queries, next_part, d_part), None

    def add(
        d_queries: _QueryGrads,
        part: KeyValues,
        d_part: _KeyValueGrads,
        sinks_N: jax.Array | None = None,
    ) -> tuple[_QueryGrads, _KeyValueGrads, jax.Array | None]:
        d_part = _rotate(plan.ring, d_part)  # they come from the device that had this part before
        d_q, d_k, d_v, d_bias, d_sinks_N = blockwise.gradients(
            plan.blocks, _saved_for_part(plan, saved, part, sinks_N), d_out_BTNH, jnp.float32
        )
        size = part.columns_S.size
        d_queries = jax.tree.map(jnp.add, d_queries, (d_q[:, : q_BTNH.shape[1]], d_bias))
        d_part = jax.tree.map(jnp.add, d_part, (d_k[:, :size], d_v[:, :size]))
        return d_queries, d_part, d_sinks_N

    def zeros(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape), tree)

    floats = blockwise.floats(bias)
    carry = (
        zeros((q_BTNH, floats)),
        _rotate(plan.ring, local_part, plan.route.first),
        zeros(local_part[:2]),
    )
    carry, _ = lax.scan(step, carry, length=plan.route.parts - 1)
    (d_q, d_bias), (d_k, d_v), d_sinks_N = add(*carry, sinks_N)  # the sinks, only once
    distance = plan.route.first + plan.route.parts - 1  # to the device of the part that came last
    d_k, d_v = _rotate(plan.ring, (d_k, d_v), -distance)
    gradients = (d_q, d_k, d_v, d_bias, d_sinks_N)
    return jax.tree.map(
        lambda d, x: forbid_reverse_mode(d.astype(x.dtype), blockwise.TWICE),
        gradients,
        (q_BTNH, *local_part[:2], floats, sinks_N),
    )


def _tangent(plan: RingPlan, saved: _Saved, inputs: blockwise.Inputs) -> jax.Array:
    """Computes the tangent of the output, sending keys and values around with their tangents."""
    q_BTNH, local_part, _, sinks_N, _, out_BTNH, _ = saved
    d_q, d_k, d_v, d_floats, d_sinks_N = inputs
    d_q = _pad(d_q, plan.blocks.q_block)

    def add(
        d_out_BTNH: jax.Array,
        part: KeyValues,
        d_part: _KeyValueGrads,
        sinks_N: jax.Array | None = None,
    ) -> jax.Array:
        d_k = _pad(d_part[0], plan.blocks.k_block)
        d_v = _pad(d_part[1], plan.blocks.k_block)
        more_BTNH = blockwise.tangent(
            plan.blocks,
            _saved_for_part(plan, saved, part, sinks_N),
            (d_q, d_k, d_v, d_floats, d_sinks_N),
        )
        return d_out_BTNH + more_BTNH[:, : q_BTNH.shape[1]]

    def step(
        carry: tuple[jax.Array, KeyValues, _KeyValueGrads], _: None
    ) -> tuple[tuple[jax.Array, KeyValues, _KeyValueGrads], None]:
        d_out_BTNH, part, d_part = carry
        following = _rotate(plan.ring, (part, d_part))
        return (add(d_out_BTNH, part, d_part), *following), None

    sent = _rotate(plan.ring, (local_part, (d_k, d_v)), plan.route.first)
    carry = (jnp.zeros(out_BTNH.shape), *sent)
    carry, _ = lax.scan(step, carry, length=plan.route.parts - 1)
    return forbid_reverse_mode(add(*carry, sinks_N).astype(out_BTNH.dtype), blockwise.TWICE)


def _saved_for_part(
    plan: RingPlan, saved: _Saved, part: KeyValues, sinks_N: jax.Array | None
) -> blockwise.Saved:
    """Returns what blockwise attention of this device's rows to a part of the keys would save."""
    q_BTNH, _, bias, _, rows, out_BTNH, lse = saved
    k_BSKH, v_BSKH, given = _block_inputs(plan, rows, part)
    q_BTNH = _pad(q_BTNH, plan.blocks.q_block)
    out_BTNH = _pad(out_BTNH, plan.blocks.q_block)
    bias_of_part = _bias_at_columns(bias, part.columns_S)
    return q_BTNH, k_BSKH, v_BSKH, bias_of_part, sinks_N, given, out_BTNH, lse


def _block_inputs(
    plan: RingPlan, rows: QueryRows, part: KeyValues
) -> tuple[jax.Array, jax.Array, Given]:
    """Pads a part of the keys to whole blocks, and finds the blocks that this device's rows see."""
    q_block = plan.blocks.q_block
    k_block = plan.blocks.k_block
    # Rows are repeated: zeros would stretch the last block's range of columns back to the first.
    q_index_T = jnp.pad(rows.rows_T, (0, -rows.rows_T.size % q_block), mode="edge")
    extra = -part.columns_S.size % k_block
    # A negative column is empty, so that no mask shows it.
    k_index_S = jnp.pad(part.columns_S, (0, extra), constant_values=-1)
    mask = rows.mask
    # Without a mask nothing would hide the padded columns.
    if mask is None and extra:
        mask = masks.full()
    starts = q_index_T.reshape(-1, q_block)
    if mask is None:
        q_spans = jnp.tile(
            jnp.asarray([[0, k_index_S.size // k_block]], jnp.int32), (len(starts), 1)
        )
    else:
        bounds = mask.column_bounds(starts.min(axis=1), starts.max(axis=1) + 1, plan.length)
        q_spans = _blocks_within(bounds, part.columns_S, len(starts), k_block)
    given = Given(
        mask,
        q_index_T,
        k_index_S,
        rows.dropout_key,
        q_spans,
        starts[:, 0] // plan.dropout_strides[0],
        k_index_S.reshape(-1, k_block)[:, 0] // plan.dropout_strides[1],
    )
    return _pad(part.k_BSKH, k_block), _pad(part.v_BSKH, k_block), given


def _blocks_within(
    bounds: tuple[masks.Slot, masks.Slot], columns_S: jax.Array, rows: int, k_block: int
) -> jax.Array:
    """Returns the range of blocks of a part whose columns are within bounds, int32 [rows, 2]."""

    def columns_before(bound: masks.Slot) -> jax.Array:
        limits = jnp.broadcast_to(bound, rows)
        return (columns_S[None] < limits[:, None]).sum(axis=1)

    first, last = map(columns_before, bounds)
    spans = jnp.stack([first // k_block, -(-last // k_block)], axis=1)
    return jnp.where((first < last)[:, None], spans, 0).astype(jnp.int32)


def _bias_at_rows(bias: Bias | jax.Array | None, rows_T: jax.Array) -> BiasTree:
    """Returns a bias whose rows are numbered from this device's first one.

    Its columns are numbered over the whole sequence.
    """
    if callable(bias):
        return jax.tree_util.Partial(call_at_rows, bias, rows_T)
    if bias is None:
        return None
    return jax.tree_util.Partial(_index_array, jnp.take(bias, rows_T, axis=2))


def _index_array(
    bias_BNTS: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    rows_BNTS = jnp.take(bias_BNTS, rows, axis=2, mode="clip")
    return jnp.take(rows_BNTS, columns, axis=3, mode="clip")


def _bias_at_columns(bias: BiasTree, columns_S: jax.Array) -> BiasTree:
    """Returns a bias whose columns are numbered from the first one of a part."""
    if bias is None:
        return None
    return jax.tree_util.Partial(_call_at_columns, bias, columns_S)


def _call_at_columns(
    bias: Bias, columns_S: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    return bias(q_BTNH, rows, jnp.take(columns_S, columns, mode="clip"))


def _rotate(ring: Shards, tree: Tree, distance: int = 1) -> Tree:
    """Sends arrays to the device `distance` further on the ring."""
    if distance % ring.count == 0:
        return tree
    to = [(i, (i + distance) % ring.count) for i in range(ring.count)]
    return jax.tree.map(lambda x: lax.ppermute(x, ring.mesh_axis, to), tree)


def _mirror(x: jax.Array, device: jax.Array, ring: Shards) -> jax.Array:
    """Swaps the second half with the device at the other end of the ring.

    Device i of n then holds halves 2i and 2n - 1 - 2i of the sequence, the earlier one first.
    """
    axis = min(1, x.ndim - 1)
    first, second = jnp.split(x, 2, axis)
    second = _to_mirror(second, ring)
    in_order = jnp.concatenate([first, second], axis)
    reverse = jnp.concatenate([second, first], axis)
    return jnp.where(2 * device < ring.count, in_order, reverse)


def _mirror_back(x: jax.Array, device: jax.Array, ring: Shards) -> jax.Array:
    """Undoes `_mirror` along axis 1."""
    earlier, later = jnp.split(x, 2, axis=1)
    in_order = 2 * device < ring.count
    second = _to_mirror(jnp.where(in_order, later, earlier), ring)
    return jnp.concatenate([jnp.where(in_order, earlier, later), second], axis=1)


def _to_mirror(x: jax.Array, ring: Shards) -> jax.Array:
    """Exchanges x between devices i and n - 1 - i."""
    to = [(i, ring.count - 1 - i) for i in range(ring.count)]
    return lax.ppermute(x, ring.mesh_axis, to)


def _pad(x: jax.Array, block: int) -> jax.Array:
    """Pads axis 1 of x [B, T, ...] with zeros to whole blocks."""
    widths = [(0, 0), (0, -x.shape[1] % block)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, widths)
