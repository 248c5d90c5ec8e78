import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.checkpoint_names import named


def test_named_arrays_are_kept_by_a_policy_and_else_recomputed():
    def wave(x):
        return jnp.sum(named("wave", jnp.sin(x)) ** 2)

    def sines(keep):
        remat = jax.checkpoint(wave, policy=jax.checkpoint_policies.save_only_these_names(keep))
        return str(jax.make_jaxpr(jax.grad(remat))(jnp.ones(3))).count("= sin ")

    assert sines("wave") == 1 and sines("other") == 2
    one, two = named("pair", jnp.ones(2), jnp.zeros(2))
    assert one.sum() == 2 and two.sum() == 0
