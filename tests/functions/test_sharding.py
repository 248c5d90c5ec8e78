import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.functions.sharding import bind, per_shard, pieces, platform, shard_act

X = jnp.ones((2, 3, 4))


class Times:
    """A binding that multiplies, and keeps what it was asked."""

    platform = "tpu"

    def __init__(self, factor):
        self.factor, self.seen = factor, []

    def constrain(self, x, names):
        self.seen.append(names)
        return self.factor * x

    def pieces(self, name):
        return (self.factor, name)

    def per_shard(self, function, arrays, names, output, over):
        self.seen.append((names, output, over))
        return self.factor * function(*arrays)


def test_identity_outside_a_trainer():
    assert shard_act(X, "BTD") is X
    jaxpr = jax.make_jaxpr(lambda x: shard_act(x, "BTD"))(X)
    assert not jaxpr.eqns


def test_binding_gets_array_and_logical_names_and_ends_with_its_block():
    double = Times(2)
    with bind(double):
        assert (shard_act(X, "BTD") == 2 * X).all()
        with bind(Times(3)):
            assert (shard_act(X, "BTD") == 3 * X).all()
        assert (shard_act(X, "BTF") == 2 * X).all()
        assert pieces("T") == (2, "length") and platform() == "tpu"
    assert double.seen == [("batch", "length", "embed"), ("batch", "length", "mlp")]
    assert shard_act(X, "BTD") is X and pieces("T").count == 1 and platform() == "cpu"


def test_per_shard_is_the_function_itself_outside_a_trainer():
    assert per_shard(jnp.add, ("BTD", "BTD"), "BTD") is jnp.add


def test_per_shard_names_every_leaf_and_unbinds_within():
    double = Times(2)

    def add(tree, nothing, y):
        assert nothing is None and shard_act(y, "BTD") is y
        return tree["a"] + tree["b"][0] + y

    with bind(double):
        out = per_shard(add, ("B", "BTD", "BTD"), "BTD", over="T")({"a": X, "b": [X]}, None, X)
    assert (out == 6 * X).all()
    names = [("batch",), ("batch",), ("batch", "length", "embed")]
    assert double.seen == [(names, ("batch", "length", "embed"), ("length",))]


def test_binding_ends_when_its_block_raises():
    with pytest.raises(RuntimeError, match="inside"), bind(Times(2)):
        raise RuntimeError("inside")
    assert shard_act(X, "BTD") is X


@pytest.mark.parametrize(("letters", "message"), [("BTZ", "no axis 'Z'"), ("BT", "2 letters for an array of shape")])
def test_letters_are_checked_even_unbound(letters, message):
    with pytest.raises(ValueError, match=message):
        shard_act(X, letters)


def test_letters_of_parts_are_checked():
    with bind(Times(2)), pytest.raises(ValueError, match="per_shard letters='BTZ': no axis 'Z'"):
        per_shard(jnp.sin, ("BTZ",), "BTD")(X)
