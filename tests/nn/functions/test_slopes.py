"""Derivatives that are written by hand, so that a backward pass keeps less, beside those that JAX
makes of the steps."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions import kernels, norms
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from tests.marks import daily

X = np.linspace(-9, 9, 301)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


def slope(function, h=1e-4):
    """By differences in float64: exact to h^2."""
    return lambda x: (function(x + h) - function(x - h)) / (2 * h)


@pytest.mark.nightly
@pytest.mark.parametrize("plain", [gelu, gelu_tanh])
def test_gelu(plain):
    ours = ACTIVATIONS[plain.__name__]
    np.testing.assert_allclose(jax.vmap(jax.grad(ours))(jnp.float32(X)), slope(plain)(X), atol=3e-6)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(jax.grad(ours)))(jnp.float32(X)), slope(slope(plain))(X), atol=2e-5
    )
    assert jax.grad(ours)(jnp.bfloat16(0.5)).dtype == jnp.bfloat16


def layer_norm(x, scale):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3) * scale[None]


def rms_norm(x, scale):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * scale[None]


@pytest.mark.parametrize("plain", [layer_norm, rms_norm])
def test_norms(plain):
    numbers = np.random.default_rng(0)
    x, out, scale = (numbers.standard_normal(shape, np.float32) for shape in [(3, 8), (3, 8), (8,)])
    ours = getattr(norms, plain.__name__)
    wanted = jax.jit(jax.grad(lambda *a: (out * plain(*a)).sum(), argnums=(0, 1)))(x, scale)
    got = jax.jit(jax.grad(lambda *a: (out * ours(*a, eps=1e-3)).sum(), argnums=(0, 1)))(x, scale)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), got, wanted)


def pooled(scores, v, visible, factor):
    return kernels.pool(kernels.softmax(scores, visible) * factor, v)


@pytest.mark.parametrize("heads", daily([4, 2], [2]))
def test_softmax_pool(heads):
    shapes = [(2, 4, 3, 5), (2, 5, heads, 8), (2, 3, 4, 8)]
    numbers = np.random.default_rng(0)
    scores, v, out = (5 * numbers.standard_normal(shape, np.float32) for shape in shapes)
    factor = 2 * numbers.integers(0, 2, scores.shape).astype(np.float32)
    # one row sees nothing
    visible = np.ones((2, 3, 5), bool)
    visible[0, 1] = False
    visible[1, :, 3:] = False

    @functools.partial(jax.jit, static_argnums=0)
    def results(function):
        value, pull = jax.vjp(lambda *a: function(*a, visible, factor), scores, v)
        _, forward = jax.jvp(lambda *a: function(*a, visible, factor), (scores, v), (scores, v))
        return value, pull(out), forward

    ours = results(kernels.softmax_pool)
    chex.assert_trees_all_close(ours, results(pooled), rtol=1e-7, atol=3e-05)
    assert not ours[0][0, 1].any()


def test_few_arrays_are_kept():
    """The backward pass of a softmax keeps one array of its size; that of the plain steps keeps
    three."""
    scores = jnp.ones((1, 2, 16, 16))
    v = jnp.ones((1, 16, 2, 4))
    visible = jnp.ones((1, 16, 16), bool)

    def kept(function):
        kept = jax.eval_shape(lambda s: jax.vjp(lambda s: function(s, v, visible), s)[1], scores)
        return sum(x.size == scores.size and x.dtype == jnp.float32 for x in jax.tree.leaves(kept))

    assert (
        kept(kernels.softmax_pool)
        == 1
        < kept(lambda s, v, visible: kernels.pool(kernels.softmax(s, visible), v))
    )
