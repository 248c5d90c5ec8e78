"""Which operations a device has; what they compute is tested where they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions import device_ops
from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from tests.nn.attentions.cases import On

CHOICES = [
    (On("tpu"), device_ops.TpuOps),
    (On("gpu"), device_ops.GpuOps),
    (On("cpu"), device_ops.CpuOps),
    (On("cpu", tuned=True), device_ops.OneCpuOps),
    (On("tpu", tuned=True), device_ops.TpuOps),  # the switch is for one CPU
    (On("metal"), device_ops.DeviceOps),
]


@pytest.mark.parametrize(("sharding", "kind"), CHOICES)
def test_the_operations_are_those_of_the_platform(sharding, kind):
    assert type(ops_of(sharding)) is kind


@pytest.mark.parametrize("rows", [1, 3, 65])
def test_a_turned_matrix_gives_the_product_of_the_matrix(rows):
    kernel_IO = jax.random.normal(jax.random.key(0), (24, 16))
    x_RI = jax.random.normal(jax.random.key(1), (rows, 24))
    ops = ops_of(ActivationSharding(tuned=True))
    np.testing.assert_allclose(
        ops.turned_product(x_RI, jnp.asarray(kernel_IO.T)), x_RI @ kernel_IO, rtol=1e-5, atol=1e-5
    )
