import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from flaxformer_lite.config import MeshConfig
from flaxformer_lite.functions.sharding import bind, per_shard
from flaxformer_lite.sharding.activations import ActivationSharding
from flaxformer_lite.sharding.mesh import build_mesh


def mesh_of(data, fsdp, tensor, context=1):
    return build_mesh(MeshConfig(data=data, fsdp=fsdp, context=context, tensor=tensor))


def test_an_indivisible_activation_stays_whole():
    placement = ActivationSharding(mesh_of(2, 2, 2))
    constrain = functools.partial(placement.constrain, names=("batch", "source", "kv_heads", "head_dim"))
    assert jax.jit(constrain)(jnp.ones((4, 2, 1, 2))).sharding.spec == P(("data", "fsdp"))


def shapes_seen(mesh, inputs, output, *arrays, over=None):
    """Shapes of the parts that a function gets, and of what it gives."""
    seen = []

    def first(*parts):
        seen.extend(part.shape for part in parts)
        return parts[0]

    def run():
        with bind(ActivationSharding(mesh)):
            return per_shard(first, inputs, output, over=over)(*arrays)

    return seen, jax.jit(run)()


def test_parts_are_those_of_the_anchors():
    q, mask, seen = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2), jnp.ones((1, 6), bool), jnp.ones((4, 6, 2, 2))
    shapes, out = shapes_seen(mesh_of(2, 1, 2, context=2), ("BTNH", "B", "BSKH", ""), "BTNH", q, mask, seen, q)
    assert shapes == [(2, 3, 2, 2), (1, 6), (2, 3, 1, 2), (4, 6, 4, 2)]
    np.testing.assert_array_equal(out, q)


def test_heads_that_cannot_all_be_divided_are_not():
    q, k = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2), jnp.ones((4, 6, 3, 2))
    shapes, out = shapes_seen(mesh_of(2, 1, 2), ("BTNH", "BSKH"), "BTNH", q, k)
    assert shapes == [(2, 6, 4, 2), (2, 6, 3, 2)]
    np.testing.assert_array_equal(out, q)
    shapes, _ = shapes_seen(mesh_of(2, 1, 2), ("BTNH", "BSKH"), "BTNH", q, k[:, :, :1])
    assert shapes == [(2, 6, 2, 2), (2, 6, 1, 2)]  # one key head serves the query heads of every device


def test_axes_that_are_not_split_by_hand_are_seen_whole():
    q = jnp.arange(4 * 6 * 4 * 2.0).reshape(4, 6, 4, 2)
    shapes, out = shapes_seen(mesh_of(2, 1, 2, context=2), ("BTNH",), "BTNH", q, over="T")
    assert shapes == [(4, 3, 4, 2)]
    np.testing.assert_array_equal(out, q)
