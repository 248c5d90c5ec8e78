"""`jax.shard_map` checks which values vary over a mesh, and sums gradients by it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

from flaxformer_lite.nn.attentions import blockwise
from flaxformer_lite.nn.functions.delta_rule import gated_delta_rule
from flaxformer_lite.nn.functions.grouped_matmul import grouped_matmul
from flaxformer_lite.nn.functions.sharding import UNSHARDED
from tests.nn.attentions.cases import H, N, by_keywords, encode, heads

PARTS = 2  # devices


def attend(table, q, k, v):
    q, k, bias = encode(q, k, "t5_buckets", bidirectional=True)
    bias = dataclasses.replace(bias, tables={"relative": table})
    return by_keywords(blockwise.attend)(q, k, v, bias=bias, q_block=4, k_block=4)


def multiply(kernel, q, k, v):
    rows = q.reshape(-1, H)
    sizes = jnp.array([len(rows) - 3, 3], jnp.int32)
    return grouped_matmul(rows, kernel, sizes, UNSHARDED)


def read(state, q, k, v):
    rate = jax.nn.sigmoid(q[..., 0])
    state = jnp.broadcast_to(state, (len(q), *state.shape))
    return gated_delta_rule(q, k / 4, v, -rate, rate, state, chunk=4)[0]


@pytest.mark.parametrize(
    ("function", "shape"), [(attend, (32, N)), (multiply, (2, H, H)), (read, (N, H, H))]
)
def test_gradients_of_replicated_arrays_are_summed_once(function, shape):
    x = [jnp.concatenate([part] * PARTS) for part in heads(N)[:3]]
    weight = jax.random.normal(jax.random.key(0), shape)

    def loss(weight, x):
        return jnp.sin(function(weight, *x)).sum()

    mesh = Mesh(np.array(jax.devices()[:PARTS]), ("data",))
    split = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    summed = jax.jit(split(jax.grad(loss)))(weight, x)
    alone = jax.jit(jax.grad(loss))(weight, heads(N)[:3])
    np.testing.assert_allclose(summed, PARTS * alone, rtol=1e-4, atol=1e-4)
