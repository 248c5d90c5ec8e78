import jax
import jax.numpy as jnp

from flaxformer_lite.functions.saved import materialize_gradient, named


def test_materializing_a_gradient_changes_no_number_in_either_mode():
    def wave(inputs):
        return jnp.sum(jnp.sin(inputs[0]) * inputs[1])

    inputs = jnp.arange(3.0), jnp.arange(1.0, 4.0)
    behind = lambda inputs: wave(materialize_gradient(inputs))  # noqa: E731
    assert behind(inputs) == wave(inputs)
    for mode in (jax.jacfwd, jax.grad):
        for own, plain in zip(mode(behind)(inputs), mode(wave)(inputs), strict=True):
            assert (own == plain).all()
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(behind))(inputs))
    assert "optimization_barrier" not in str(jax.make_jaxpr(behind)(inputs))


def test_named_arrays_are_kept_by_a_policy_and_else_recomputed():
    def wave(x):
        return jnp.sum(named("wave", jnp.sin(x)) ** 2)

    def sines(keep):
        remat = jax.checkpoint(wave, policy=jax.checkpoint_policies.save_only_these_names(keep))
        return str(jax.make_jaxpr(jax.grad(remat))(jnp.ones(3))).count("= sin ")

    assert sines("wave") == 1 and sines("other") == 2
    one, two = named("pair", jnp.ones(2), jnp.zeros(2))
    assert one.sum() == 2 and two.sum() == 0
