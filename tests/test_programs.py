"""Programs that tests share compute what each would have by itself."""

import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core.scope import Scope
from flax.errors import ScopeParamShapeError

from tests import programs

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("FLAXFORMER_LITE_DEFAULT_XLA")), reason="programs are not shared then"
)
X = np.arange(4.0, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    return tmp_path


def product(table):
    return jax.jit(lambda x: x @ table)


def test_the_same_text_is_compiled_once_and_read_afterwards(folder):
    double = 2 * np.eye(4, dtype=np.float32)
    product(double)(X)
    (path,) = folder.iterdir()
    product(2 * double)(X)
    (other,) = set(folder.iterdir()) - {path}
    other.replace(path)
    np.testing.assert_array_equal(product(double)(X), 4 * X)  # as it reads the other's file


def test_names_of_operations_make_another_program():
    for name in ("first", "second"):

        def sine(x, name=name):
            with jax.named_scope(name):
                return jnp.sin(x)

        assert f"/{name}/" in jax.jit(sine).lower(X).compile().as_text()


def test_programs_that_were_used_last_are_kept(folder, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 20)
    for time, name in enumerate(("first", "second", "third")):
        (folder / name).write_bytes(bytes(9))
        os.utime(folder / name, (time, time))
    programs.delete_unused()
    assert {path.name for path in folder.iterdir()} == {"second", "third"}


def test_a_constant_that_differs_makes_another_program():
    for last in (3, 4):
        np.testing.assert_array_equal(
            product(np.diag(np.float32([1, 1, 1, last])))(X), [0, 1, 2, 3 * last]
        )


def test_each_device_has_a_program_of_its_own():
    for device in jax.devices()[2:4]:
        assert product(np.eye(4, dtype=np.float32))(jax.device_put(X, device)).devices() == {device}


def test_a_callback_is_that_of_its_own_function():
    seen = []
    for name in ("a", "b"):
        jax.jit(lambda x, name=name: jax.debug.callback(lambda _: seen.append(name), x))(X)
        jax.effects_barrier()
    assert seen == ["a", "b"]


def test_a_parameter_of_the_shape_asked_for_is_not_initialized_to_be_compared(monkeypatch):
    monkeypatch.setattr(Scope, "param", Scope.param)
    programs.trust_shapes()
    params = {"kernel": np.eye(4, 3, dtype=np.float32), "bias": np.zeros(3, np.float32)}
    layer = nn.Dense(3, kernel_init=lambda *_: pytest.fail("initialized"))
    np.testing.assert_array_equal(layer.apply({"params": params}, X), X[:3])
    with pytest.raises(ScopeParamShapeError, match="kernel"):
        nn.Dense(2).apply({"params": params}, X)
