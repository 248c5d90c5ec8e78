import jax.numpy as jnp

from flaxformer_lite.nn.positions.nope import Nope


def test_does_nothing():
    x = jnp.ones((1, 3, 4))
    positions = jnp.arange(3)[None]
    assert Nope().embed({}, x, positions) is x
    assert Nope().phase(positions, 4) is None
    assert Nope().attention_bias({}, positions, positions, bidirectional=True) is None
