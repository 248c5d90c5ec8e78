import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import Attention, AttentionConfig, Execution, FeedForward, Rope
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.functions.sharding import place_execution
from flaxformer_lite.nn.functions.tpu_tuning import OPTIONS, compiler_options, materialize
from tests.nn.attentions.cases import On


@pytest.mark.parametrize("value", [False, True])
def test_materializing_changes_no_number_in_either_mode(value):
    def wave(inputs):
        return jnp.sum(jnp.sin(inputs[0]) * inputs[1])

    inputs = jnp.arange(3.0), jnp.arange(1.0, 4.0)
    behind = lambda inputs: wave(materialize(inputs, On(), value=value))  # noqa: E731
    assert behind(inputs) == wave(inputs)
    for mode in (jax.jacfwd, jax.grad):
        for own, plain in zip(mode(behind)(inputs), mode(wave)(inputs), strict=True):
            assert (own == plain).all()
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(behind))(inputs))
    assert ("optimization_barrier" in str(jax.make_jaxpr(behind)(inputs))) == value
    assert materialize(inputs, On(device_kind="TPU v5 lite"), value=value) is inputs


@pytest.mark.parametrize(
    "module",
    [
        Attention(
            AttentionConfig(num_heads=2, head_dim=6, position=Rope(), bias=("query",)),
            Execution(attention="dense"),
        ),
        FeedForward(MlpConfig(mlp_dim=12, gated=True)),
    ],
)
def test_a_layer_tuned_for_tpus_has_the_same_values_and_gradients(module):
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    params = module.init(jax.random.key(1), x)
    tuned = module.clone(execution=place_execution(module.execution, On("tpu"), None))

    def run(module):
        return jax.jit(
            jax.value_and_grad(
                lambda params, x: jnp.sin(module.apply(params, x)).sum(), argnums=(0, 1)
            )
        )

    wanted = run(module)(params, x)
    found = run(tuned)(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), wanted, found)
    assert "optimization_barrier" in str(jax.make_jaxpr(tuned.apply)(params, x))


def test_the_compiler_is_told_what_the_environment_does_not_tell_it(monkeypatch):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    assert compiler_options("TPU v4") is None and compiler_options("cpu") is None
    assert compiler_options("TPU v5") == OPTIONS["TPU v5"]
    assert compiler_options("TPU v6 lite") == OPTIONS["TPU v6 lite"]
    name = "xla_tpu_enable_async_collective_fusion"  # also the start of two other names
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_other=1 --{name}=false")
    assert compiler_options("TPU v5").keys() == OPTIONS["TPU v5"].keys() - {name}
