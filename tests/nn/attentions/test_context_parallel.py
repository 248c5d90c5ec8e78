"""Attention over a sequence that is split over devices equals that of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.nn.attentions import blockwise, context_parallel, dense
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import UNSHARDED
from flaxformer_lite.sharding.activations import MeshSharding
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


SIZES = {"dense": {"context": 4, "data": 2}, "blockwise": {"context": 2, "data": 2, "tensor": 2}}
DAILY = {
    "dense": ("packed", "array"),
    "blockwise": ("none", "window", "prefix"),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[] if case in DAILY[name] else pytest.mark.nightly)
        for name in SIZES
        for case in MASKS
    ],
)
def test_equals_one_device_in_value_and_gradient(name, case):
    got = everything(context_parallel.spread(BLOCKS[name]), mesh_of(**SIZES[name]), case)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5),
        got,
        of_one_device(case),
    )


def test_crosses_from_one_split_sequence_to_another():
    q, k, v, _ = cases.heads(2, length=T)
    mask = masks.segments(SEGMENTS[:, :8], SEGMENTS)
    got = jax.jit(on(mesh_of(context=4), context_parallel.spread(blockwise.attend)))(
        q[:, :8], k, v, mask=mask
    )
    np.testing.assert_allclose(got, DENSE(q[:, :8], k, v, mask=mask), atol=1e-5)


def test_sinks_equal_those_of_one_device():
    q, k, v, direction = cases.heads(2, length=T)
    sinks = jnp.asarray([-1.0, 0.0, 1.0, 4.0])

    def gradient(attend, sinks):
        out, pull = jax.vjp(lambda x: attend(q, k, v, mask=masks.causal(), sinks_N=x), sinks)
        return out, pull(direction)

    split = on(mesh_of(context=2, data=2, tensor=2), context_parallel.spread(BLOCKS["blockwise"]))
    got, due = (jax.jit(functools.partial(gradient, run))(sinks) for run in (split, DENSE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), got, due)


def text_of(attend, mesh, mask, length):
    shape = jax.ShapeDtypeStruct((2, length, 4, 8), jnp.float32)
    run = functools.partial(on(mesh, attend), mask=mask)
    return jax.jit(run).lower(shape, shape, shape).compile().as_text()


def test_rows_trade_places_only_where_some_see_more():
    mesh = mesh_of(context=4, data=1)
    attend = context_parallel.spread(blockwise.attend)
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
    spread = on(mesh_of(context=4, data=1), context_parallel.spread(whose))
    row, device = jax.jit(functools.partial(spread, mask=masks.causal()))(q, q, q)[0, :, 0].T
    np.testing.assert_array_equal(row, np.arange(64))
    columns_seen = [int((row[device == i] + 1).sum()) for i in range(4)]
    assert columns_seen == [sum(range(1, 65)) // 4] * 4


def test_no_device_holds_all_pairs():
    length = 512
    text = text_of(
        context_parallel.spread(blockwise.attend),
        mesh_of(context=4, data=1),
        masks.causal(),
        length,
    )
    assert f"{length},{length}" not in text and f"{length // 4},{length}]" not in text


def test_a_cache_and_lengths_that_do_not_divide_are_left_alone():
    q, k, v, _ = cases.heads(2, length=14)
    spread = on(mesh_of(context=4), context_parallel.spread(dense.attend))
    np.testing.assert_allclose(
        spread(q, k, v, mask=masks.causal()), DENSE(q, k, v, mask=masks.causal()), atol=1e-6
    )
    index = jnp.asarray([3], jnp.int32)
    np.testing.assert_array_equal(
        spread(q[:, :1], k, v, mask=masks.causal(), q_index=index),
        DENSE(q[:, :1], k, v, mask=masks.causal(), q_index=index),
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_dropout_differs_from_part_to_part_and_keeps_the_mean(name):
    ones = jnp.ones((64, T, 4, 8))
    attend = on(mesh_of(context=4, data=2), context_parallel.spread(BLOCKS[name]))
    drop = functools.partial(attend, mask=masks.causal(), dropout_rate=0.5)
    dropped = jax.jit(drop)(ones, ones, ones, dropout_key=jax.random.key(1))
    parts = dropped[..., 0].reshape(64, 8, 2, 4)  # halves of four devices
    last = parts[:, :, 1]
    assert len({np.asarray(last[:, i]).tobytes() for i in range(8)}) == 8
    np.testing.assert_allclose(dropped.mean(), 1, atol=0.05)
