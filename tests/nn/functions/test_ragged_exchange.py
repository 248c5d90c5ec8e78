"""Rows that devices send to each other: against copying them one by one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

from flaxformer_lite.nn.functions.ragged_exchange import exchange
from flaxformer_lite.nn.functions.sharding import UNSHARDED

DEVICES = 4
SENT = 6
RECEIVED = 24
COUNTS = {
    "uneven": [[1, 0, 3, 2], [0, 0, 0, 0], [6, 0, 0, 0], [2, 1, 1, 1]],
    "all to one device": [[0, 5, 0, 0], [0, 4, 0, 0], [0, 5, 0, 0], [0, 6, 0, 0]],
    "nothing": np.zeros((4, 4), int),
}


def expected(x, counts):
    y = np.zeros((DEVICES, RECEIVED, x.shape[-1]), np.float32)
    filled = np.zeros(DEVICES, int)
    for source in range(DEVICES):
        read = 0
        for target, count in enumerate(counts[source]):
            for _ in range(count):
                y[target, filled[target]] = x[source, read]
                filled[target] += 1
                read += 1
    return y


def test_rows_reach_the_devices_they_are_for_and_gradients_go_back():
    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), "p")

    def on_device(x_1MD, counts_PP):
        return exchange(x_1MD[0], counts_PP, RECEIVED, "p", UNSHARDED)[None]

    send = jax.shard_map(
        on_device, mesh=mesh, in_specs=(P("p"), P()), out_specs=P("p"), check_vma=False
    )

    @jax.jit
    def values(x, d_y, counts):
        y, pull = jax.vjp(lambda x: send(x, counts), x)
        (d_x,) = pull(d_y)
        return y, d_x, jax.jvp(lambda x: send(x, counts), (x,), (x,))[1]

    draw = np.random.default_rng(0).standard_normal
    x = draw((DEVICES, SENT, 3)).astype(np.float32)
    d_y = draw((DEVICES, RECEIVED, 3)).astype(np.float32)
    for counts in COUNTS.values():
        y, d_x, tangent = values(x, d_y, jnp.asarray(counts, jnp.int32))
        np.testing.assert_array_equal(y, expected(x, counts))
        np.testing.assert_array_equal(tangent, y)
        np.testing.assert_allclose(np.vdot(d_x, x), np.vdot(d_y, y), rtol=1e-5)
        is_sent = np.arange(SENT) < np.sum(counts, axis=1)[:, None]
        np.testing.assert_array_equal(np.any(d_x, axis=-1), is_sent)
