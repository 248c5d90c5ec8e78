"""Programs that tests share compute what each would have by itself."""

import jax
import jax.numpy as jnp
import numpy as np

X = np.arange(4.0, dtype=np.float32)


def waves(number, table, times=24):
    """A program that takes long enough to compile to be held."""

    def apply(x):
        for step in range(times):
            x = jnp.sin(x + step) * number + jnp.tanh(x) @ table
        return x

    return jax.jit(apply)


def test_a_constant_that_differs_makes_another_program():
    tables = np.eye(4, dtype=np.float32), np.diag(np.float32([1, 1, 1, 2]))
    got = [waves(0.5, table)(X) for table in tables]
    with jax.disable_jit():
        wanted = [waves(0.5, table)(X) for table in tables]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert not np.allclose(*got)


def test_each_device_has_a_program_of_its_own():
    table, devices = np.eye(4, dtype=np.float32), jax.devices()[2:4]
    got = [waves(0.25, table)(jax.device_put(X, device)) for device in devices]
    assert [y.devices() for y in got] == [{device} for device in devices]


def test_a_callback_is_that_of_its_own_function():
    seen = []
    for name in ("a", "b"):
        jax.jit(lambda x, name=name: jax.debug.callback(lambda _: seen.append(name), x))(X)
        jax.effects_barrier()
    assert seen == ["a", "b"]
