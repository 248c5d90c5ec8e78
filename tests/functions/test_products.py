import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import MeshConfig
from flaxformer_lite.functions.products import product_of
from flaxformer_lite.functions.sharding import bind
from flaxformer_lite.sharding.activations import ActivationSharding
from flaxformer_lite.sharding.mesh import build_mesh

TOKENS, WIDTH, HIDDEN, LAYERS = 256, 64, 1024, 4


def gated(inputs):
    gate, up = inputs
    return jax.nn.silu(gate) * up


def net(weights, x):
    for up, gate, down in weights:
        x = x + product_of(gated, (x @ up, x @ gate), down)
    return jnp.square(x).sum()


def trained(net, devices=1):
    """What a trainer on the first devices makes of the gradients."""

    def gradients(*args):
        with bind(ActivationSharding(build_mesh(MeshConfig(data=devices)))):
            return jax.grad(net)(*args)

    return gradients


@pytest.fixture
def case():
    keys = iter(jax.random.split(jax.random.key(0), 3 * LAYERS + 1))
    shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    weights = [[0.1 * jax.random.normal(next(keys), shape) for shape in shapes] for _ in range(LAYERS)]
    return weights, jax.random.normal(next(keys), (2, TOKENS // 2, WIDTH))


def test_a_trainers_gradients_are_those_of_the_product(case):
    for got, want in zip(jax.tree.leaves(trained(net)(*case)), jax.tree.leaves(jax.grad(net)(*case)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_a_trainer_keeps_what_goes_in_alone(case):
    held = lambda gradients: jax.jit(gradients).lower(*case).compile().memory_analysis().temp_size_in_bytes  # noqa: E731
    assert held(trained(net)) < held(jax.grad(net)) - (LAYERS - 1) * 4 * TOKENS * HIDDEN


def test_a_mesh_keeps_the_product_as_it_stands(case):
    products = lambda devices: str(jax.make_jaxpr(trained(net, devices))(*case)).count("silu")  # noqa: E731
    assert products(1) > products(2)


def test_all_others_have_forward_mode(case):
    weights, x = case
    _, slope = jax.jvp(lambda x: net(weights, x), (x,), (x,))
    np.testing.assert_allclose(slope, jnp.vdot(jax.grad(net, 1)(weights, x), x), rtol=1e-4)
