import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import flaxformer_lite
from flaxformer_lite import build_model, sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.nn.functions.losses import cross_entropy
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.sharding.activations import MeshSharding
from tests.jaxprs import equations
from tests.marks import daily

X = jnp.ones((2, 3, 4))
ROOT = Path(flaxformer_lite.__file__).parent


def test_everything_is_whole_on_one_device():
    assert UNSHARDED.constrain(X, "BTD") is X
    assert UNSHARDED.num_shards("T") == (1, ()) and UNSHARDED.platform == "cpu"
    assert (
        UNSHARDED.per_shard(jnp.add, ("BTD", "BTD"), "BTD") is jnp.add
        and UNSHARDED.inside_shard() is UNSHARDED
    )
    assert ActivationSharding() == UNSHARDED and hash(UNSHARDED) == hash(ActivationSharding())


def test_one_cpu_is_tuned_on_request():
    assert not UNSHARDED.is_single_cpu and ActivationSharding(tuned=True).is_single_cpu


@pytest.mark.parametrize(
    ("letters", "message"), [("BTI", "no axis 'I'"), ("BT", "2 letters for an array of shape")]
)
def test_letters_are_checked(letters, message):
    with pytest.raises(ValueError, match=message):
        UNSHARDED.constrain(X, letters)


@pytest.mark.parametrize("folder", ["functions", "attentions", "positions", "modules"])
def test_nothing_is_read_from_a_context(folder):
    for path in sorted((ROOT / "nn" / folder).glob("*.py")):
        named = {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        assert "ContextVar" not in named and "contextvars" not in path.read_text(), path


def operations(jaxpr):
    """The primitives of a traced program in their order with what they give."""
    for eqn in equations(jaxpr):
        if eqn.primitive.name not in ("sharding_constraint", "reshard"):
            yield eqn.primitive.name, *(str(out.aval) for out in eqn.outvars)


@pytest.mark.parametrize("family", daily(["gpt2", "bert", "t5"], ["t5"]))
@pytest.mark.parametrize("scan", [False, True])
def test_a_model_is_the_same_program_in_and_out_of_a_trainer(family, scan):
    layers = {"gpt2": ("decoder",), "bert": ("encoder",), "t5": ("encoder", "decoder")}[family]
    sizes = {f"{stack}_layers": 2 for stack in layers}
    sizes |= {
        "vocab_size": 64,
        "d_model": 16,
        "num_heads": 2,
        "mlp_dim": 32,
        "dropout": 0.0,
        "scan": scan,
    }
    model = build_model(family, "tiny", **sizes)
    ids = jnp.ones((2, 24), jnp.int32)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if family == "t5" else {})
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), **inputs, method="features"))
    placed = MeshSharding(sharding.build_mesh(MeshConfig(data=1)), tuned=False)
    trained = model.clone(sharding=placed)

    def traced(model):
        def loss(variables):
            projection = model.apply(variables, **inputs, method="features").projection
            return cross_entropy(projection, ids, chunks=2).loss_sum

        return jax.make_jaxpr(loss)(variables).jaxpr

    outside = traced(model)
    inside = traced(trained)
    assert "sharding_constraint" in str(inside) and "sharding_constraint" not in str(outside)
    assert list(operations(inside)) == list(operations(outside))
