import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.functions.sharding import bind, shard_act

X = jnp.ones((2, 3, 4))


def test_identity_outside_a_trainer():
    assert shard_act(X, "BTD") is X
    jaxpr = jax.make_jaxpr(lambda x: shard_act(x, "BTD"))(X)
    assert not jaxpr.eqns


def test_binding_gets_array_and_logical_names_and_ends_with_its_block():
    seen = []

    def double(x, names):
        seen.append(names)
        return 2 * x

    with bind(double):
        assert (shard_act(X, "BTD") == 2 * X).all()
        with bind(lambda x, names: 3 * x):
            assert (shard_act(X, "BTD") == 3 * X).all()
        assert (shard_act(X, "BTF") == 2 * X).all()
    assert seen == [("batch", "length", "embed"), ("batch", "length", "mlp")]
    assert shard_act(X, "BTD") is X


def test_binding_ends_when_its_block_raises():
    with pytest.raises(RuntimeError, match="inside"), bind(lambda x, names: 2 * x):
        raise RuntimeError("inside")
    assert shard_act(X, "BTD") is X


@pytest.mark.parametrize(("letters", "message"), [("BTQ", "no axis 'Q'"), ("BT", "2 letters for an array of shape")])
def test_letters_are_checked_even_unbound(letters, message):
    with pytest.raises(ValueError, match=message):
        shard_act(X, letters)
