"""Attention over a sequence that is split over devices equals that of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError, MeshConfig, choices
from flaxformer_lite.nn.attentions import blockwise, dense
from flaxformer_lite.nn.attentions.context_parallel import all_to_all, gather, ring
from flaxformer_lite.nn.attentions.dispatch import attention
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import UNSHARDED
from flaxformer_lite.sharding.activations import MeshSharding
from tests.marks import daily
from tests.nn.attentions import cases

T = 16
B = cases.B
SEGMENTS = np.array([[1] * 5 + [2] * 9 + [0] * 2, [3] * 16], np.int32)
KEEP = np.array([[1] * 12 + [0] * 4, [0] * 3 + [1] * 13], bool)
MASKS = {  # with a position encoding each
    "none": (None, "shaw"),
    "causal": (masks.causal(), "rope"),
    "window": (masks.window(3), "alibi"),
    "packed": (masks.causal() & masks.segments(SEGMENTS), "t5_buckets"),
    "padding": (masks.padding(KEEP), "t5_buckets"),
    "prefix": ((masks.causal() | masks.prefix(~KEEP)) & masks.segments(SEGMENTS), "alibi"),
    "array": ((masks.causal() & masks.segments(SEGMENTS)).dense(T), "shaw"),
}
DENSE = cases.by_keywords(dense.attend)
BLOCKS = {
    "dense": dense.attend,
    "blockwise": functools.partial(blockwise.attend, q_block=3, k_block=5),
}
SMALL_RING = functools.partial(ring.attend, q_block=3, k_block=5)
WAYS = {
    **{name: gather.spread(attend) for name, attend in BLOCKS.items()},
    "ring": SMALL_RING,
    "all_to_all": all_to_all.spread(dense.attend),
}


def mesh_of(**sizes):
    return sharding.build_mesh(MeshConfig(**sizes))


def everything(attend, mesh, case):
    """Output and gradients of queries, keys, values and the encoding's tables, on a mesh or (None)
    outside any."""
    mask, position = MASKS[case]
    q, k, v, direction = cases.heads(2, length=T)
    tables = (
        cases.tables(cases.encode(q, k, position, bidirectional=True)[2].encoding)
        if position in BIASES
        else {}
    )

    def run(q, k, v, tables):
        q, k, bias = cases.encode(q, k, position, bidirectional=mask is None or case == "padding")
        if bias is not None:
            bias = type(bias)(
                tables, bias.q_positions_BT, bias.k_positions_BS, bias.encoding, bias.bidirectional
            )
        return on(mesh, attend)(q, k, v, mask=mask, bias=bias)

    def value_and_pull(*args):
        out, pull = jax.vjp(run, *args)
        return out, pull(direction)

    return jax.jit(value_and_pull)(q, k, v, tables)


BIASES = ("t5_buckets", "alibi", "shaw")


def on(mesh, attend):
    """The implementation on a mesh, of arrays that are split there."""
    placed = UNSHARDED if mesh is None else MeshSharding(mesh)

    def run(q, k, v, **options):
        q = placed.constrain(q, "BTNH")
        k = placed.constrain(k, "BSKH")
        v = placed.constrain(v, "BSKH")
        return cases.by_keywords(attend)(q, k, v, **options, sharding=placed)

    return run


@functools.cache
def of_one_device(case):
    return everything(dense.attend, None, case)


SIZES = {
    "dense": {"context": 4, "data": 2},
    "blockwise": {"context": 2, "data": 2, "tensor": 2},
    "ring": {"context": 4, "data": 2},
    "all_to_all": {"context": 2, "data": 2, "tensor": 2},
}
DAILY = {
    "dense": ("array",),
    "blockwise": ("window",),
    "ring": ("packed",),
    "all_to_all": ("prefix",),
}
TOLERANCES = {"ring": (1e-6, 2e-6), "all_to_all": (1e-6, 2e-6)}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[] if case in DAILY[name] else pytest.mark.nightly)
        for name in SIZES
        for case in MASKS
    ],
)
def test_equals_one_device_in_value_and_gradient(name, case):
    got = everything(WAYS[name], mesh_of(**SIZES[name]), case)
    relative, absolute = TOLERANCES.get(name, (1e-5, 2e-5))
    wanted = of_one_device(case)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        largest = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, atol=absolute * largest, rtol=relative)


@pytest.mark.parametrize("name", daily(["blockwise", "ring"], ["ring"]))
def test_crosses_from_one_split_sequence_to_another(name):
    q, k, v, _ = cases.heads(2, length=T)
    mask = masks.segments(SEGMENTS[:, :8], SEGMENTS)
    got = jax.jit(on(mesh_of(context=4), WAYS[name]))(q[:, :8], k, v, mask=mask)
    np.testing.assert_allclose(got, DENSE(q[:, :8], k, v, mask=mask), atol=1e-5)


@pytest.mark.parametrize("name", daily(["blockwise", "ring", "all_to_all"], ["ring", "all_to_all"]))
def test_sinks_equal_those_of_one_device(name):
    q, k, v, direction = cases.heads(2, length=T)
    sinks = jnp.asarray([-1.0, 0.0, 1.0, 4.0])

    def gradient(attend, sinks):
        out, pull = jax.vjp(lambda x: attend(q, k, v, mask=masks.causal(), sinks_N=x), sinks)
        return out, pull(direction)

    split = on(mesh_of(context=2, data=2, tensor=2), WAYS[name])
    got, due = (jax.jit(functools.partial(gradient, run))(sinks) for run in (split, DENSE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), got, due)


def text_of(attend, mesh, mask, length):
    shape = jax.ShapeDtypeStruct((2, length, 4, 8), jnp.float32)
    run = functools.partial(on(mesh, attend), mask=mask)
    return jax.jit(run).lower(shape, shape, shape).compile().as_text()


def test_rows_trade_places_only_where_some_see_more():
    mesh = mesh_of(context=4, data=1)
    attend = gather.spread(blockwise.attend)
    counts = {
        case: text_of(attend, mesh, MASKS[case][0], T).count(" collective-permute(")
        for case in ("none", "causal")
    }
    # keys and values three times; queries and outputs, and the rows' numbers
    assert counts == {
        "none": 6,
        "causal": 6 + 3,
    }


def test_every_row_keeps_its_number_and_every_device_has_the_same_work():
    def whose(q, k, v, args):
        row = jnp.broadcast_to(args.q_index[None, :, None, None].astype(jnp.float32), q.shape)
        return jnp.concatenate([row, jnp.full_like(q, jax.lax.axis_index("context"))], axis=-1)

    q = jnp.zeros((1, 64, 1, 1))
    spread = on(mesh_of(context=4, data=1), gather.spread(whose))
    row, device = jax.jit(functools.partial(spread, mask=masks.causal()))(q, q, q)[0, :, 0].T
    np.testing.assert_array_equal(row, np.arange(64))
    columns_seen = [int((row[device == i] + 1).sum()) for i in range(4)]
    assert columns_seen == [sum(range(1, 65)) // 4] * 4


def test_no_device_holds_all_pairs():
    length = 512
    text = text_of(
        gather.spread(blockwise.attend),
        mesh_of(context=4, data=1),
        masks.causal(),
        length,
    )
    assert f"{length},{length}" not in text and f"{length // 4},{length}]" not in text


def test_a_cache_and_lengths_that_do_not_divide_are_left_alone():
    q, k, v, _ = cases.heads(2, length=14)
    spread = on(mesh_of(context=4), gather.spread(dense.attend))

    @jax.jit
    def both(q, **index):
        return [attend(q, k, v, mask=masks.causal(), **index) for attend in (spread, DENSE)]

    np.testing.assert_allclose(*both(q), atol=1e-6)
    np.testing.assert_array_equal(*both(q[:, :1], q_index=jnp.asarray([3], jnp.int32)))


@pytest.mark.parametrize("name", daily(BLOCKS, ("blockwise",)))
def test_dropout_differs_from_part_to_part_and_keeps_the_mean(name):
    ones = jnp.ones((64, T, 4, 8))
    attend = on(mesh_of(context=4, data=2), gather.spread(BLOCKS[name]))
    drop = functools.partial(attend, mask=masks.causal(), dropout_rate=0.5)
    dropped = jax.jit(drop)(ones, ones, ones, dropout_key=jax.random.key(1))
    parts = dropped[..., 0].reshape(64, 8, 2, 4)  # halves of four devices
    last = parts[:, :, 1]
    assert len({np.asarray(last[:, i]).tobytes() for i in range(8)}) == 8
    np.testing.assert_allclose(dropped.mean(), 1, atol=0.05)


@pytest.mark.parametrize(
    ("mask", "route"),
    [
        (None, (0, 8)),
        (masks.causal(), (0, 8)),
        (masks.window(3), (0, 3)),
        (masks.window(2), (0, 2)),
        (masks.window(0), (0, 1)),
        (masks.window(3, 3), (-2, 5)),
        (masks.window(0, 2), (-1, 2)),
        (masks.window(3) & masks.segments(SEGMENTS), (0, 3)),
    ],
)
def test_parts_that_no_device_sees_are_not_sent(mask, route):
    assert ring.route_of(mask, T, T, 8) == route


def test_a_ring_sends_what_its_route_says_and_holds_no_whole_keys():
    length = 512
    mesh = mesh_of(context=4, data=1)
    texts = {
        window: text_of(ring.attend, mesh, masks.window(window), length) for window in (0, 200)
    }
    # keys, values and the numbers of columns, twice in a loop
    assert [text.count(" collective-permute(") for text in texts.values()] == [0, 3]
    assert '"known_trip_count":{"n":"2"}' in texts[200]
    whole = f"f32[2,{length},"
    gathered = text_of(gather.spread(blockwise.attend), mesh, None, length)
    assert whole in gathered and not any(whole in text for text in texts.values())


def test_every_part_of_a_causal_ring_has_the_same_work():
    size = 16
    halves = np.arange(4 * size, dtype=np.int32).reshape(8, -1)
    held = [np.concatenate(sorted((halves[2 * i], halves[7 - 2 * i]), key=min)) for i in range(4)]
    plan = ring.RingPlan(
        blockwise.BlockPlan(1.0, 0.0, 0.0, 2, 2, UNSHARDED),
        None,
        ring.Route(0, 4),
        4 * size,
        (2, 2),
    )
    keys = jnp.zeros((1, size, 1, 1))

    def blocks(i, j):
        rows = ring.QueryRows(masks.causal(), jnp.asarray(held[i]), None)
        _, _, given = ring._block_inputs(
            plan, rows, ring.KeyValues(keys, keys, jnp.asarray(held[j]))
        )
        first, last = given.spans.T
        return int((last - first).sum())

    # eight blocks of rows and of columns: half of all pairs, or of its own two triangles and a half
    work = [[blocks(i, (i - step) % 4) for i in range(4)] for step in range(4)]
    assert work == [[10 + 16 + 10] * 4] + [[32] * 4] * 3


@pytest.mark.nightly
def test_a_ring_drops_what_one_device_drops():
    q, k, v, _ = cases.heads(2, length=T)

    def dropped(mesh, attend):
        attend = on(mesh, functools.partial(attend, q_block=2, k_block=2))
        drop = functools.partial(attend, mask=masks.causal(), dropout_rate=0.5)
        return jax.jit(drop)(q, k, v, dropout_key=jax.random.key(1))

    got = dropped(mesh_of(context=4), ring.attend)
    np.testing.assert_allclose(got, dropped(None, blockwise.attend), atol=1e-6)


@pytest.mark.nightly
def test_a_ring_has_tangents_and_products_with_hessians():
    q, k, v, direction = cases.heads(2, length=T)
    sinks = jnp.asarray([-1.0, 0.0, 1.0, 4.0])
    tangents = (direction, k[:, ::-1], v[:, ::-1], sinks[::-1])

    def derivatives(attend):
        def squares(q, k, v, sinks):
            return (attend(q, k, v, mask=masks.causal(), sinks_N=sinks) ** 2).sum()

        def both(*arrays):
            gradient = jax.grad(squares, argnums=(0, 1, 2, 3))
            return jax.jvp(squares, arrays, tangents)[1], jax.jvp(gradient, arrays, tangents)[1]

        return jax.jit(both)(q, k, v, sinks)

    got = derivatives(on(mesh_of(context=4), SMALL_RING))
    wanted = derivatives(on(None, BLOCKS["blockwise"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, wanted)


def test_heads_that_do_not_divide_and_attention_without_blocks_are_refused():
    q, k, v, _ = cases.heads(2, length=T)
    mesh = mesh_of(context=8)
    placed = {way: MeshSharding(mesh, context_attention=way) for way in choices.CONTEXT_ATTENTIONS}
    with pytest.raises(ConfigError, match=r"4.*not divide.*8 .*set mesh.context_att"):
        attention(q, k, v, sharding=placed["all_to_all"])
    with pytest.raises(ConfigError, match=r"'dense': .* set model.attention=auto"):
        attention(q, k, v, sharding=placed["ring"], implementation="dense")
