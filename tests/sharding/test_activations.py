import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite.config import MeshConfig
from flaxformer_lite.sharding.activations import LocalSharding, MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh


def mesh_of(data, fsdp, tensor, context=1):
    return build_mesh(MeshConfig(data=data, fsdp=fsdp, context=context, tensor=tensor))


def test_an_indivisible_activation_stays_whole():
    placement = MeshSharding(mesh_of(2, 2, 2))
    constrain = functools.partial(placement.constrain, letters="BSKH")
    assert jax.jit(constrain)(jnp.ones((4, 2, 1, 2))).sharding.spec == P(("data", "fsdp"))


def shapes_seen(mesh, inputs, output, *arrays, over=None):
    """Shapes of the parts that a function gets, and of what it gives."""
    seen = []

    def first(*parts):
        seen.extend(part.shape for part in parts)
        return parts[0]

    def run():
        return MeshSharding(mesh).per_shard(first, inputs, output, over=over)(*arrays)

    return seen, jax.jit(run)()


def test_shards_are_those_of_the_constraints():
    q = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2)
    mask = jnp.ones((1, 6), bool)
    seen = jnp.ones((4, 6, 2, 2))
    shapes, out = shapes_seen(
        mesh_of(2, 1, 2, context=2), ("BTNH", "B", "BSKH", ""), "BTNH", q, mask, seen, q
    )
    assert shapes == [(2, 3, 2, 2), (1, 6), (2, 3, 1, 2), (4, 6, 4, 2)]
    np.testing.assert_array_equal(out, q)


def test_heads_that_cannot_all_be_divided_are_not():
    q = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2)
    k = jnp.ones((4, 6, 3, 2))
    shapes, out = shapes_seen(mesh_of(2, 1, 2), ("BTNH", "BSKH"), "BTNH", q, k)
    assert shapes == [(2, 6, 4, 2), (2, 6, 3, 2)]
    np.testing.assert_array_equal(out, q)
    shapes, _ = shapes_seen(mesh_of(2, 1, 2), ("BTNH", "BSKH"), "BTNH", q, k[:, :, :1])
    # one key head serves the query heads of every device
    assert shapes == [
        (2, 6, 2, 2),
        (2, 6, 1, 2),
    ]


def test_axes_that_are_not_split_by_hand_are_seen_whole():
    q = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2)
    shapes, out = shapes_seen(mesh_of(2, 1, 2, context=2), ("BTNH",), "BTNH", q, over="T")
    assert shapes == [(4, 3, 4, 2)]
    np.testing.assert_array_equal(out, q)


def test_every_leaf_of_an_argument_has_its_letters_and_none_stays_none():
    def add(tree, nothing, y):
        assert nothing is None
        return {"sum": tree["a"] + tree["b"][0] + y}

    x = jnp.arange(24.0).reshape(4, 6)
    add_per_shard = MeshSharding(mesh_of(2, 1, 1)).per_shard(
        add, ("BT", "BTD", "BT"), {"sum": "BT"}
    )
    np.testing.assert_array_equal(jax.jit(add_per_shard)({"a": x, "b": [x]}, None, x)["sum"], 3 * x)


def test_a_mesh_is_a_value_and_says_how_it_splits():
    one, same, other = (
        MeshSharding(mesh_of(*sizes)) for sizes in ((2, 2, 2), (2, 2, 2), (1, 1, 1))
    )
    assert (
        one == same
        and hash(one) == hash(same)
        and one != other != MeshSharding(mesh_of(1, 1, 1), tuned=False)
    )
    assert one.num_shards("B") == (4, ("data", "fsdp", "expert")) and one.num_shards("D") == (1, ())
    assert (
        one.inside_shard() == LocalSharding("cpu") and one.inside_shard().num_shards("B").count == 1
    )
    assert (
        other.is_single_cpu
        and not one.is_single_cpu
        and not MeshSharding(mesh_of(1, 1, 1), tuned=False).is_single_cpu
    )


def test_letters_of_shards_are_checked():
    with pytest.raises(ValueError, match="per_shard letters='BTI': no axis 'I'"):
        MeshSharding(mesh_of(1, 1, 1)).per_shard(jnp.sin, ("BTI",), "BTD")(jnp.ones((2, 3, 4)))
