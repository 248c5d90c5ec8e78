"""Ring attention: rows that are split over devices meet keys and values that travel.

Each device keeps its queries. Keys, values and the numbers of their columns pass from device to
device, and every device adds what it sees of them to the softmax of its rows, block by block as in
blockwise.py. The backward pass is a ring too: keys and values travel again, and their gradients
travel with them until they are home. No device ever holds more than two parts of the keys, and no
step of the ring leaves anything for the backward pass.

Blocks that the mask rules out are not computed, and parts that no device sees are not sent: under a
sliding window a device receives its neighbors' parts only.

If later rows see more, as under a causal mask, the rows are cut into 2n parts, and of each pair i
and 2n - 1 - i of them one device holds both. In each step of the ring every device then has two
pairs of parts to compare, and all have the same work.

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
from flaxformer_lite.nn.attentions.context_parallel.balance import lopsided
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.checkpoint_names import ATTENTION, named
from flaxformer_lite.nn.functions.linear_call import linear_call, only_forwards
from flaxformer_lite.nn.functions.sharding import Shards
from flaxformer_lite.types import Tree

BLOCK = 256  # rows and columns of a block, as blockwise has


class Route(NamedTuple):
    """The way of the keys around a ring.

    Device i first receives the part of device `i - first`, then those before it, `parts` in all.
    """

    first: int
    parts: int


class RingPlan(NamedTuple):
    """The constants of a call."""

    blocks: blockwise.BlockPlan
    ring: Shards
    route: Route
    length: int  # S, the columns on all devices
    # slots between numbers of dropout's blocks: a block's size, or 1 where blocks do not line up
    # with those of one device
    numbered_by: tuple[int, int]


class KeyValues(NamedTuple):
    """The keys and values that travel, with the numbers of their columns, increasing."""

    k_BSKH: jax.Array
    v_BSKH: jax.Array
    columns_S: jax.Array


class QueryRows(NamedTuple):
    """Inputs that stay on a device and have no gradient: mask, numbers of rows, key of dropout."""

    mask: masks.Mask | None
    rows_T: jax.Array
    dropout_key: jax.Array | None


# queries, the part of this device, the bias, the sinks, rows, the output, log-sums of exponentials
_Saved = tuple[jax.Array, KeyValues, BiasTree, jax.Array | None, QueryRows, jax.Array, jax.Array]
_Primals = tuple[jax.Array, KeyValues, BiasTree, jax.Array | None, QueryRows]
_Carry = tuple[SoftmaxState, KeyValues]
_OfPart = tuple[jax.Array, jax.Array]  # gradients or tangents of a part's keys and values
_OfRows = tuple[jax.Array, list[jax.Array]]  # gradients of queries and the bias


def attend(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    args: Arguments,
    /,
    *,
    q_block: int = BLOCK,
    k_block: int = BLOCK,
) -> jax.Array:
    """Computes `dense.attend` of sequences that `args.sharding` splits.

    Dropout draws the numbers that blockwise attention draws on one device, if each device's parts
    are whole blocks; else other ones.

    Args:
      q_BTNH, k_BSKH, v_BSKH, args: as in `dispatch.attention`.
      q_block, k_block: rows and columns of a block.

    Returns:
      Array [B, T, N, H] in the dtype of the values, with the derivatives that blockwise has. If
      there are slots of a cache, or lengths that do not divide, attention is blockwise's.
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
    # Mirrored parts would see more than their neighbors' under a sliding window.
    mirrored = (
        route.parts == ring.count and S % (2 * ring.count) == 0 and lopsided(mask, T, S, ring.count)
    )
    halves = 2 if mirrored else 1
    q_part = T // ring.count // halves
    k_part = S // ring.count // halves
    q_block = min(q_block, q_part)
    k_block = min(k_block, k_part)
    dropout_rate = args.dropout_rate if args.drops else 0.0
    plan = RingPlan(
        blockwise.BlockPlan(
            scale, args.softcap, dropout_rate, q_block, k_block, args.sharding.inside_shard()
        ),
        ring,
        Route(0, ring.count) if mirrored else route,
        S,
        (1 if q_part % q_block else q_block, 1 if k_part % k_block else k_block),
    )
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
        out_BTNH = _attend(plan, q_BTNH, part, _of_rows(bias, rows_T), sinks_N, rows)
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
        args.dropout_key if args.drops else None,
    )


def route_of(mask: masks.Mask | None, T: int, S: int, count: int) -> Route:
    """Returns the shortest way on which every part of the keys meets the rows that see it."""
    if mask is None:
        return Route(0, count)
    needed = set()
    for device in range(count):
        size = T // count
        first, last = mask.column_bounds(device * size, (device + 1) * size, S)
        for other in range(count):
            size = S // count
            if first < (other + 1) * size and last > other * size:
                needed.add((device - other) % count)
    # After the longest run of parts that no device sees, all those that follow are sent.
    steps = sorted(needed) or [0]
    gaps = [(steps[i] - steps[i - 1] - 1) % count for i in range(len(steps))]
    gap = max(gaps)
    first = steps[gaps.index(gap)]
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
    home: KeyValues,
    bias: BiasTree,
    sinks_N: jax.Array | None,
    rows: QueryRows,
) -> tuple[jax.Array, _Saved]:
    padded_BTNH = _pad(q_BTNH, plan.blocks.q_block)
    numbers = jnp.arange(padded_BTNH.shape[1] // plan.blocks.q_block)

    def add(states: SoftmaxState, part: KeyValues) -> SoftmaxState:
        k_BSKH, v_BSKH, given = _meet(plan, rows, part)

        def of_block(_: None, each: tuple[jax.Array, SoftmaxState]) -> tuple[None, SoftmaxState]:
            i, state = each
            biased = _of_columns(bias, part.columns_S)
            return None, blockwise.add_columns(
                plan.blocks, padded_BTNH, k_BSKH, v_BSKH, biased, given, i, state
            )

        return lax.scan(of_block, None, (numbers, states))[1]

    def step(carry: _Carry, _: None) -> tuple[_Carry, None]:
        states, part = carry
        coming = _pass_on(plan.ring, part)  # while this part is computed
        return (add(states, part), coming), None

    start = blockwise.no_columns(q_BTNH, home.v_BSKH, plan.blocks.q_block, sinks_N)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (numbers.size, *x.shape)), start)
    part = _pass_on(plan.ring, home, plan.route.first)
    (states, part), _ = lax.scan(step, (states, part), length=plan.route.parts - 1)
    states = add(states, part)
    out, lse = jax.vmap(functools.partial(blockwise.finish, v_BSKH=home.v_BSKH))(states)
    out_BTNH, lse = named(ATTENTION, blockwise.join(out)[:, : q_BTNH.shape[1]], lse)
    return out_BTNH, (q_BTNH, home, bias, sinks_N, rows, out_BTNH, lse)


def _backward(plan: RingPlan, saved: _Saved, d_out_BTNH: jax.Array) -> blockwise.Inputs:
    """Sends keys and values around again, and with them their gradients."""
    q_BTNH, home, bias, sinks_N, *_ = saved
    d_out_BTNH = _pad(d_out_BTNH, plan.blocks.q_block)

    def step(
        carry: tuple[_OfRows, KeyValues, _OfPart], _: None
    ) -> tuple[tuple[_OfRows, KeyValues, _OfPart], None]:
        d_here, part, d_part = carry
        coming = _pass_on(plan.ring, part)
        d_here, d_part = add(d_here, part, d_part)[:2]
        return (d_here, coming, d_part), None

    def add(
        d_here: _OfRows, part: KeyValues, d_part: _OfPart, sinks_N: jax.Array | None = None
    ) -> tuple[_OfRows, _OfPart, jax.Array | None]:
        d_part = _pass_on(plan.ring, d_part)  # from the device that had this part before
        d_q, d_k, d_v, d_bias, d_sinks_N = blockwise.gradients(
            plan.blocks, _meeting(plan, saved, part, sinks_N), d_out_BTNH, jnp.float32
        )
        size = part.columns_S.size
        d_here = jax.tree.map(jnp.add, d_here, (d_q[:, : q_BTNH.shape[1]], d_bias))
        d_part = jax.tree.map(jnp.add, d_part, (d_k[:, :size], d_v[:, :size]))
        return d_here, d_part, d_sinks_N

    def zeros(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape), tree)

    floats = blockwise.floats(bias)
    carry = zeros((q_BTNH, floats)), _pass_on(plan.ring, home, plan.route.first), zeros(home[:2])
    carry, _ = lax.scan(step, carry, length=plan.route.parts - 1)
    (d_q, d_bias), (d_k, d_v), d_sinks_N = add(*carry, sinks_N)  # sinks count once
    back = plan.route.first + plan.route.parts - 1
    d_k, d_v = _pass_on(plan.ring, (d_k, d_v), -back)
    gradients = (d_q, d_k, d_v, d_bias, d_sinks_N)
    return jax.tree.map(
        lambda d, x: only_forwards(d.astype(x.dtype), blockwise.TWICE),
        gradients,
        (q_BTNH, *home[:2], floats, sinks_N),
    )


def _tangent(plan: RingPlan, saved: _Saved, inputs: blockwise.Inputs) -> jax.Array:
    """Sends keys, values and their tangents around."""
    q_BTNH, home, _, sinks_N, _, out_BTNH, _ = saved
    d_q, d_k, d_v, d_floats, d_sinks_N = inputs
    d_q = _pad(d_q, plan.blocks.q_block)

    def add(
        d_out_BTNH: jax.Array, part: KeyValues, d_part: _OfPart, sinks_N: jax.Array | None = None
    ) -> jax.Array:
        d_k = _pad(d_part[0], plan.blocks.k_block)
        d_v = _pad(d_part[1], plan.blocks.k_block)
        more_BTNH = blockwise.tangent(
            plan.blocks,
            _meeting(plan, saved, part, sinks_N),
            (d_q, d_k, d_v, d_floats, d_sinks_N),
        )
        return d_out_BTNH + more_BTNH[:, : q_BTNH.shape[1]]

    def step(
        carry: tuple[jax.Array, KeyValues, _OfPart], _: None
    ) -> tuple[tuple[jax.Array, KeyValues, _OfPart], None]:
        d_out_BTNH, part, d_part = carry
        coming = _pass_on(plan.ring, (part, d_part))
        return (add(d_out_BTNH, part, d_part), *coming), None

    travelling = _pass_on(plan.ring, (home, (d_k, d_v)), plan.route.first)
    carry = (jnp.zeros(out_BTNH.shape), *travelling)
    carry, _ = lax.scan(step, carry, length=plan.route.parts - 1)
    return only_forwards(add(*carry, sinks_N).astype(out_BTNH.dtype), blockwise.TWICE)


def _meeting(
    plan: RingPlan, saved: _Saved, part: KeyValues, sinks_N: jax.Array | None
) -> blockwise.Saved:
    """Returns what blockwise attention would save of the rows here and a part of the keys."""
    q_BTNH, _, bias, _, rows, out_BTNH, lse = saved
    k_BSKH, v_BSKH, given = _meet(plan, rows, part)
    q_BTNH = _pad(q_BTNH, plan.blocks.q_block)
    out_BTNH = _pad(out_BTNH, plan.blocks.q_block)
    biased = _of_columns(bias, part.columns_S)
    return q_BTNH, k_BSKH, v_BSKH, biased, sinks_N, given, out_BTNH, lse


def _meet(plan: RingPlan, rows: QueryRows, part: KeyValues) -> tuple[jax.Array, jax.Array, Given]:
    """Pads a part of the keys to whole blocks, and finds the blocks that the rows here see."""
    q_block = plan.blocks.q_block
    k_block = plan.blocks.k_block
    q_index_T = jnp.pad(rows.rows_T, (0, -rows.rows_T.size % q_block), mode="edge")
    extra = -part.columns_S.size % k_block
    k_index_S = jnp.pad(part.columns_S, (0, extra), constant_values=-1)
    mask = rows.mask
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
        starts[:, 0] // plan.numbered_by[0],
        k_index_S.reshape(-1, k_block)[:, 0] // plan.numbered_by[1],
    )
    return _pad(part.k_BSKH, k_block), _pad(part.v_BSKH, k_block), given


def _blocks_within(
    bounds: tuple[masks.Slot, masks.Slot], columns_S: jax.Array, rows: int, k_block: int
) -> jax.Array:
    """Returns the blocks of a part's columns whose numbers are within bounds, [rows, 2]."""

    def columns_before(bound: masks.Slot) -> jax.Array:
        limits = jnp.broadcast_to(bound, rows)
        return (columns_S[None] < limits[:, None]).sum(axis=1)

    first, last = map(columns_before, bounds)
    spans = jnp.stack([first // k_block, -(-last // k_block)], axis=1)
    return jnp.where((first < last)[:, None], spans, 0).astype(jnp.int32)


def _of_rows(bias: Bias | jax.Array | None, rows_T: jax.Array) -> BiasTree:
    """Returns a bias that takes numbers of rows here, and numbers of columns on all devices."""
    if callable(bias):
        return jax.tree_util.Partial(_asked_of_rows, bias, rows_T)
    if bias is None:
        return None
    return jax.tree_util.Partial(_taken, jnp.take(bias, rows_T, axis=2))


def _asked_of_rows(
    bias: Bias, rows_T: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    return bias(q_BTNH, jnp.take(rows_T, rows, mode="clip"), columns)


def _taken(
    bias_BNTS: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    rows_BNTS = jnp.take(bias_BNTS, rows, axis=2, mode="clip")
    return jnp.take(rows_BNTS, columns, axis=3, mode="clip")


def _of_columns(bias: BiasTree, columns_S: jax.Array) -> BiasTree:
    if bias is None:
        return None
    return jax.tree_util.Partial(_asked_of_columns, bias, columns_S)


def _asked_of_columns(
    bias: Bias, columns_S: jax.Array, q_BTNH: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
    return bias(q_BTNH, rows, jnp.take(columns_S, columns, mode="clip"))


def _pass_on(ring: Shards, tree: Tree, places: int = 1) -> Tree:
    """Sends arrays `places` devices ahead on the ring."""
    if places % ring.count == 0:
        return tree
    to = [(i, (i + places) % ring.count) for i in range(ring.count)]
    return jax.tree.map(lambda x: lax.ppermute(x, ring.mesh_axis, to), tree)


def _mirror(x: jax.Array, device: jax.Array, ring: Shards) -> jax.Array:
    """Swaps the second half with the device at the other end; the earlier half comes first.

    Device i of n then holds halves 2i and 2n - 1 - 2i.
    """
    axis = min(1, x.ndim - 1)
    first, second = jnp.split(x, 2, axis)
    second = _to_mirror(second, ring)
    in_order = jnp.concatenate([first, second], axis)
    reverse = jnp.concatenate([second, first], axis)
    return jnp.where(2 * device < ring.count, in_order, reverse)


def _mirror_back(x: jax.Array, device: jax.Array, ring: Shards) -> jax.Array:
    earlier, later = jnp.split(x, 2, axis=1)
    in_order = 2 * device < ring.count
    second = _to_mirror(jnp.where(in_order, later, earlier), ring)
    return jnp.concatenate([jnp.where(in_order, earlier, later), second], axis=1)


def _to_mirror(x: jax.Array, ring: Shards) -> jax.Array:
    to = [(i, ring.count - 1 - i) for i in range(ring.count)]
    return lax.ppermute(x, ring.mesh_axis, to)


def _pad(x_BT: jax.Array, block: int) -> jax.Array:
    widths = [(0, 0), (0, -x_BT.shape[1] % block)] + [(0, 0)] * (x_BT.ndim - 2)
    return jnp.pad(x_BT, widths)
