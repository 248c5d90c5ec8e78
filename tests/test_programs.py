"""Programs that tests share compute what each would have by itself."""

import os

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax.core.scope import Scope
from flax.errors import ScopeParamShapeError

from tests import programs

APART = bool(os.environ.get("FLAXFORMER_LITE_DEFAULT_XLA"))
pytestmark = pytest.mark.skipif(APART, reason="programs are not shared then")
X = np.arange(4.0, dtype=np.float32)


@pytest.fixture(autouse=True)
def hold_small_programs(monkeypatch):
    monkeypatch.setattr(programs, "WORTH", 0)


def product(table):
    return jax.jit(lambda x: x @ table)


def test_the_same_text_is_compiled_once():
    product(2 * np.eye(4, dtype=np.float32))(X)
    before = len(programs.held)
    np.testing.assert_array_equal(product(2 * np.eye(4, dtype=np.float32))(X), 2 * X)
    assert len(programs.held) == before


def test_programs_wanted_twice_outlive_the_others():
    for number in (3, 4, 3):
        product(number * np.eye(4, dtype=np.float32))(X)
    programs.forget()
    before = len(programs.held)
    for number, more in ((3, 0), (4, 1)):
        product(number * np.eye(4, dtype=np.float32))(X)
        assert len(programs.held) == before + more


def test_a_constant_that_differs_makes_another_program():
    for last in (3, 4):
        found = product(np.diag(np.float32([1, 1, 1, last])))(X)
        np.testing.assert_array_equal(found, [0, 1, 2, 3 * last])


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
