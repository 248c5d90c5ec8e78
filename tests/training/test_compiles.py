import jax
import jax.numpy as jnp

from flaxformer_lite.training import compiles


def test_counts_each_new_shape_once():
    double = jax.jit(lambda x: x * 2)
    small, large = jnp.ones(3), jnp.ones(4)
    before = compiles.total()
    double(small)
    assert compiles.total() == before + 1
    double(small)
    assert compiles.total() == before + 1
    double(large)
    assert compiles.total() == before + 2
