"""qwix finds every matrix of the layers, as what it misses stays in float32 without a word, and
trains LoRA over them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite import LoraConfig, generate
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from tests.marks import daily
from tests.models import tiny

pytestmark = pytest.mark.filterwarnings("ignore:'VariableState' was removed")  # of qwix 0.1.8
METHODS = ("__call__", "encode", "decode")  # generation calls the last two


@pytest.fixture(autouse=True)
def promotion():
    """qwix multiplies integers by scales."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def quantized(family, qtype=jnp.int8, **options):
    """A model with noise on every weight, the same with quantized layers, and the weights of
    both."""
    model, params = tiny.built(tiny.small(family, **{"number": 1, **options}))
    rules = [
        qwix.QuantizationRule(
            module_path=r".*layer_\d.*", weight_qtype=qtype, op_names=("dot_general",)
        )
    ]
    methods = [name for name in METHODS if hasattr(model, name)]
    small = qwix.quantize_model(model, qwix.PtqProvider(rules), methods=methods)
    inputs = tiny.inputs_of(model.cfg, tiny.ids())
    shapes = jax.eval_shape(small.init, jax.random.key(0), **inputs)["params"]
    return model, params, small, qwix.quantize_params(params, shapes)


def check_near(model, params, small, held):
    """The quantized model rounds, and no more than that."""
    inputs = tiny.inputs_of(model.cfg, tiny.ids())
    due, got = (
        jax.jit(m.apply)({"params": p}, **inputs).logits
        for m, p in ((model, params), (small, held))
    )
    assert 0 < np.abs(due - got).mean() < 0.1 * np.abs(due).mean()


def found(params):
    """The paths of what is quantized."""
    is_quantized = lambda leaf: hasattr(leaf, "how")  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_quantized)
    return {"/".join(key.key for key in keys) for keys, leaf in leaves if is_quantized(leaf)}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family",
    daily(["t5", "bert", "gpt2", "llama"], ["bert"]),
)
def test_every_matrix_of_a_layer_is_quantized_and_nothing_else(family):
    model, params, small, held = quantized(family, adapter=LoraConfig(rank=2))
    flat = flatten_dict(params, sep="/")
    assert found(held) == {path for path in flat if "/layer_" in path and path.endswith("/kernel")}
    assert all(
        leaf.array.qvalue.dtype == jnp.int8
        for leaf in jax.tree.leaves(held, is_leaf=lambda x: hasattr(x, "how"))
        if hasattr(leaf, "how")
    )
    check_near(model, params, small, held)


def test_heads_are_quantized_on_a_tpu_too(monkeypatch):
    # where narrow heads are multiplied side by side
    monkeypatch.setattr(ActivationSharding, "platform", "tpu")
    model, params, small, held = quantized("bert", number=1)
    check_near(model, params, small, held)


@pytest.mark.parametrize("qtype", [jnp.int4, pytest.param("nf4", marks=pytest.mark.nightly)])
def test_lora_is_trained_over_four_bits(qtype):
    _, _, small, held = quantized("llama", qtype, adapter=LoraConfig(rank=2))
    flat = flatten_dict(held)
    factors = {path: leaf for path, leaf in flat.items() if path[-1].startswith("lora_")}
    tx = optax.adam(1e-2)
    state = tx.init(factors)
    losses = []

    @jax.jit
    def step(factors, state):
        def loss(factors):
            logits = small.apply({"params": unflatten_dict(flat | factors)}, tiny.ids()).logits[
                :, :-1
            ]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tiny.ids()[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(factors)
        updates, state = tx.update(gradient, state)
        return optax.apply_updates(factors, updates), state, value

    for _ in range(10):
        factors, state, value = step(factors, state)
        losses.append(float(value))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.nightly
def test_a_quantized_model_generates():
    _, _, small, held = quantized("gpt2")
    prompt = tiny.ids(length=4)
    written = generate(small, held, prompt, max_new_tokens=4)
    whole = small.apply({"params": held}, jnp.asarray(written)).logits
    np.testing.assert_array_equal(np.argmax(whole[:, 3:-1], axis=-1), written[:, 4:])
