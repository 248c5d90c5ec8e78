import types

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.analysis import flops


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_matrix_product_counts_two_flops_a_multiply_add():
    assert (
        flops.count(lambda a, b: jnp.einsum("ab,bcd->acd", a, b), spec(3, 5), spec(5, 7, 2))
        == 2 * 3 * 5 * 7 * 2
    )


def test_scan_remat_jit_and_custom_vjp_are_walked_into():
    @jax.custom_vjp
    def product(x, w):
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))

    def layer(x, w):
        return jax.checkpoint(jax.jit(product))(x, w), None

    one = 2 * 4 * 8 * 8
    assert (
        flops.count(lambda x, w: jax.lax.scan(layer, x, w)[0], spec(4, 8), spec(6, 8, 8)) == 6 * one
    )


def test_a_row_of_a_group_is_multiplied_once_forwards_and_in_each_gradient():
    def product(x, w):
        return jax.lax.ragged_dot(x, w, jnp.array([2, 0, 6], jnp.int32)).sum()

    rows = (spec(8, 4), spec(3, 4, 5))
    assert flops.count(product, *rows) == 2 * 8 * 4 * 5
    assert flops.count(jax.value_and_grad(product, argnums=(0, 1)), *rows) == 3 * 2 * 8 * 4 * 5


def test_convolution():
    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )

    assert flops.count(conv, spec(2, 10, 3), spec(4, 3, 5)) == 2 * (2 * 7 * 5) * (4 * 3)


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v5 lite", 197e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("cpu", None),
    ],
)
def test_peak_is_known_or_none(kind, peak):
    assert flops.peak(types.SimpleNamespace(device_kind=kind)) == peak
