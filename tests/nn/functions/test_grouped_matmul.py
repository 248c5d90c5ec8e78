import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.grouped_matmul import grouped_matmul
from tests.nn.attentions.cases import On

megablox = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
ROWS = 40
SIZES = {
    "uneven": [13, 0, 26, 1],
    "one group": [0, 40, 0, 0],
    "rows beyond": [3, 9, 0, 11],
}


def arrays():
    draw = np.random.default_rng(0).standard_normal
    return jnp.asarray(draw((ROWS, 6)), jnp.float32), jnp.asarray(draw((4, 6, 5)), jnp.float32)


def expected(x, kernel, sizes):
    owner = np.repeat(np.arange(4), sizes)
    return np.einsum("li,lio->lo", x[: len(owner)], kernel[owner])


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_each_row_meets_the_matrix_of_its_group(platform):
    x, kernel = arrays()
    product = jax.jit(functools.partial(grouped_matmul, sharding=On(platform=platform)))
    for sizes in SIZES.values():
        y = product(x, kernel, jnp.asarray(sizes, jnp.int32))
        np.testing.assert_allclose(
            y[: sum(sizes)], expected(x, kernel, sizes), rtol=1e-5, atol=1e-5
        )


def test_blocks_have_the_derivatives_of_the_product():
    """Forwards and backwards, with rows beyond all groups."""
    x, kernel = arrays()
    sizes = jnp.asarray(SIZES["rows beyond"], jnp.int32)
    real = (jnp.arange(ROWS) < sizes.sum())[:, None]

    def loss(x, kernel, platform):
        y = grouped_matmul(x, kernel, sizes, On(platform=platform))
        return jnp.sum(jnp.where(real, jnp.sin(y), 0.0))

    @functools.partial(jax.jit, static_argnames="platform")
    def derivatives(platform):
        call = functools.partial(loss, platform=platform)
        gradients = jax.grad(call, (0, 1))(x, kernel)
        _, forwards = jax.jvp(call, (x, kernel), (x + 1, kernel - 1))
        return gradients, forwards

    for ours, theirs in zip(
        jax.tree.leaves(derivatives("cpu")), jax.tree.leaves(derivatives("gpu")), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_the_kernel_of_a_tpu_has_the_gradients_of_the_compiler(monkeypatch):
    """It is interpreted here. A group without rows has a gradient of zero."""
    monkeypatch.setattr(megablox, "tgmm", functools.partial(megablox.tgmm, interpret=True))
    x, kernel = arrays()

    @functools.partial(jax.jit, static_argnames="platform")
    def gradients(x, kernel, sizes, platform):
        _, pull = jax.vjp(
            lambda *each: grouped_matmul(*each, sizes, On(platform=platform)), x, kernel
        )
        real_L1 = (jnp.arange(ROWS) < sizes.sum())[:, None]
        d_x, d_kernel = pull(jnp.where(real_L1, 1.0 + jnp.arange(5.0)[None], 0.0))
        return jnp.where(real_L1, d_x, 0.0), d_kernel

    for sizes in SIZES.values():
        sizes = jnp.asarray(sizes, jnp.int32)
        ours, theirs = (gradients(x, kernel, sizes, platform) for platform in ("tpu", "gpu"))
        for got, due in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(got, due, rtol=1e-4, atol=1e-5)


def test_few_rows_touch_few_matrices():
    """A step of generation reads the matrices of its tokens' experts only."""
    kernel = jnp.ones((64, 6, 5))
    sizes = jnp.zeros(64, jnp.int32).at[7].set(2)
    call = functools.partial(grouped_matmul, sharding=On(platform="cpu"))
    text = str(jax.make_jaxpr(call)(jnp.ones((2, 6)), kernel, sizes))
    assert "length=2" in text, "one block a row"
