"""A mixture of experts: against every expert on every token, on meshes, and in a step."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError, Execution, MeshConfig, choices
from flaxformer_lite.nn.feed_forwards.mlp import FeedForward, MlpConfig
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.functions import masks, quantized
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.training.program import auxiliary_losses
from tests.examples import trials
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
CFG = MoeConfig(
    num_experts=4,
    mlp_dim=24,
    shared_dim=8,
    shared_gate=True,
    expert=MlpConfig(gated=True, bias=True),
)
X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 16)), jnp.float32)
KEEP = jnp.arange(8)[None] < jnp.asarray([8, 5, 2, 7])[:, None]
PADDED = Context(mask=masks.padding(KEEP))


def made(cfg=CFG, execution=Execution()):
    module = cfg.module(execution)
    params = jax.jit(module.init)(jax.random.key(0), X)["params"]
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [0.3 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return module, jax.tree.unflatten(tree, drawn)


def every_expert(params):
    """Computes the layer with each expert on each token, and zero weights elsewhere."""
    shared = FeedForward(CFG.shared).apply({"params": params["shared"]}, X)
    y = jax.nn.sigmoid(X @ params["shared_gate"]["kernel"]) * shared
    probability = jax.nn.softmax(X @ params["router"]["kernel"])
    largest, chosen = jax.lax.top_k(probability, 2)
    for expert in range(4):
        weight = jnp.where(chosen == expert, largest, 0.0).sum(-1) / largest.sum(-1)
        one = jax.tree.map(lambda x, expert=expert: x[expert], params["experts"])
        plain = FeedForward(dataclasses.replace(CFG.expert, mlp_dim=24))
        y += weight[..., None] * plain.apply({"params": one}, X)
    return y


def test_it_is_the_weighted_sum_of_its_experts():
    module, params = made()
    y = jax.jit(module.apply)({"params": params}, X)
    np.testing.assert_allclose(y, jax.jit(every_expert)(params), rtol=1e-4, atol=1e-5)


MUTABLE = ["losses", "routed", "loads"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"data": 2, "expert": 2, "tensor": 2}, marks=pytest.mark.nightly),
        pytest.param({"data": 2, "fsdp": 2, "context": 2}, marks=pytest.mark.nightly),
        # eight devices and four rows: the batch stays whole
        pytest.param({"data": 2, "expert": 4}, marks=pytest.mark.nightly),
        {"data": 1, "expert": 2, "context": 2, "tensor": 2, "expert_dispatch": "all_to_all"},
        pytest.param(
            {"data": 1, "fsdp": 2, "expert": 2, "context": 2, "expert_dispatch": "all_to_all"},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=str,
)
def test_a_mesh_computes_the_same(sizes):
    module, params = made()
    cfg = MeshConfig(**sizes)
    sharding = MeshSharding(build_mesh(cfg), expert_dispatch=cfg.expert_dispatch)
    on_mesh = CFG.module(PlacedExecution(sharding=sharding))

    def values(module, params):
        def loss(params):
            y, sown = module.apply({"params": params}, X, PADDED, mutable=["losses"])
            return jnp.sum(jnp.sin(y)) + sum(jax.tree.leaves(sown)), (y, sown)

        (_, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return outputs, gradients

    on_one = jax.jit(lambda params: values(module, params))
    on_many = jax.jit(lambda params: values(on_mesh, params))
    same_scores = params | {"router": jax.tree.map(jnp.zeros_like, params["router"])}
    for each in (params, same_scores):  # the latter: all tokens choose the same two experts
        chex.assert_trees_all_close(on_many(each), on_one(each), rtol=0.0001, atol=1e-05)


@pytest.mark.nightly
@pytest.mark.parametrize("over", ["stack", "row"])
def test_a_mesh_has_the_same_sums_for_the_losses_of_a_stack(over):
    _, params = made()
    cfg = dataclasses.replace(CFG, balance=0.5, z_loss=0.1, losses_over=over)
    sharding = MeshSharding(build_mesh(MeshConfig(data=2, expert=2, context=2)))

    def losses(execution):
        module = cfg.module(execution)
        step = jax.jit(lambda: module.apply({"params": params}, X, PADDED, mutable=MUTABLE)[1])
        return auxiliary_losses(step())

    on_mesh = losses(PlacedExecution(sharding=sharding))
    due = losses(Execution())
    assert set(due) == {"load_balancing", "router_z"}
    for name, loss in due.items():
        np.testing.assert_allclose(on_mesh[name], loss, rtol=1e-5)


class InLayer(nn.Module):
    """The experts under a path of a layer's, where matrices may be held in few bits."""

    execution: Execution

    @nn.compact
    def __call__(self, x):
        return CFG.module(self.execution, name="layer_0")(x)


@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        pytest.param("nf4", {"data": 1}, marks=pytest.mark.nightly),
        pytest.param("int8", {"data": 2, "expert": 2, "tensor": 2}, marks=pytest.mark.nightly),
        pytest.param("int4", {"data": 2, "fsdp": 2, "expert": 2}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_experts_in_few_bits_are_those_of_their_restored_matrices(form, sizes):
    """In value and in the gradient of the tokens; the scales have none."""
    mesh = build_mesh(MeshConfig(**sizes))
    held = InLayer(PlacedExecution(quantize=form, sharding=MeshSharding(mesh)))
    params = jax.jit(held.init)(jax.random.key(0), X)["params"]
    flat = flatten_dict(params, sep="/")
    restored = {}
    for path, leaf in flat.items():
        kernel, _, part = path.rpartition("/")
        if part == "codes":
            restored[kernel] = quantized.dequantize(leaf, flat[f"{kernel}/scale"], form)
        elif f"{kernel}/codes" not in flat:
            restored[path] = leaf

    @functools.partial(jax.jit, static_argnums=0)
    def both(module, params, x):
        y, pull = jax.vjp(lambda x: module.apply({"params": params}, x), x)
        return y, pull(jnp.sin(y))[0]

    got = both(held, params, X)
    due = both(InLayer(Execution()), unflatten_dict(restored, sep="/"), X)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, due)
    scales = [path for path in flat if path.endswith("experts/up/kernel/scale")]

    def loss(scale):
        return held.apply({"params": unflatten_dict(flat | {scales[0]: scale}, sep="/")}, X).sum()

    assert not np.any(jax.jit(jax.grad(loss))(flat[scales[0]]))


@pytest.mark.nightly
@pytest.mark.parametrize("dispatch", choices.EXPERT_DISPATCHES)
def test_a_mesh_moves_the_bias_of_the_choice_equally_and_computes_copies_as_the_dense_layer(
    dispatch,
):
    cfg = dataclasses.replace(CFG, shared_dim=0, shared_gate=False, router_bias_update_rate=0.01)
    module, params = made(cfg)
    sharding = MeshSharding(build_mesh(MeshConfig(data=2, expert=4)), expert_dispatch=dispatch)
    on_mesh = cfg.module(PlacedExecution(sharding=sharding))
    x = jnp.concatenate([X, -X])  # rows for all devices

    def bias_gradient(module):
        def loss(params):
            return module.apply({"params": params}, x, mutable=["losses", "loads"])[0].sum()

        return jax.jit(jax.grad(loss))(params)["choice_bias"]

    one = bias_gradient(module)
    assert np.any(one)
    np.testing.assert_array_equal(bias_gradient(on_mesh), one)

    first = jax.tree.map(lambda leaf: leaf[:1], params["experts"])
    copies = jax.tree.map(lambda leaf: jnp.repeat(leaf, 4, axis=0), first)
    y = jax.jit(on_mesh.apply)({"params": params | {"experts": copies}}, x)
    dense = FeedForward(dataclasses.replace(CFG.expert, mlp_dim=24))
    expected = dense.apply({"params": jax.tree.map(lambda leaf: leaf[0], first)}, x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)


def test_padding_has_no_part_in_the_balance():
    module, params = made()

    @jax.jit
    def balance(x):
        return module.apply({"params": params}, x, PADDED, mutable=["losses"])[1]["losses"]

    loss = balance(X)["load_balancing"][0]
    np.testing.assert_array_equal(
        loss, balance(jnp.where(KEEP[..., None], X, 7.0))["load_balancing"][0]
    )
    assert 0 < loss < 4 * CFG.balance


def test_what_experts_cannot_do_is_refused():
    with pytest.raises(ConfigError, match=r"experts_per_token=3.*num_experts=2"):
        MoeConfig(num_experts=2, experts_per_token=3)
    with pytest.raises(ConfigError, match=r"shared_gate.*set shared_dim"):
        MoeConfig(shared_gate=True)
    with pytest.raises(ConfigError, match=r"groups=3.*8 experts must divide"):
        MoeConfig(groups=3, groups_per_token=1)
    module = CFG.module(Execution(dropout=0.1, dropout_at=("mlp",)))
    with pytest.raises(ConfigError, match=r"dropout_at.*'mlp'"):
        module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)


EXPERTS = {
    "model.feed_forward.name": "moe",
    "model.feed_forward.balance": 0.5,
    "model.feed_forward.router_bias_update_rate": 0.01,
}
SCANNED = {"train.accumulate": 2, "model.scan": True}


@pytest.mark.nightly
@pytest.mark.parametrize("over", [pytest.param("layer", marks=pytest.mark.nightly), "stack"])
def test_the_balance_of_experts_reaches_the_loss_of_a_step(over, tmp_path):
    """And their load its metrics, and the bias of their choice, against the sign of the load."""
    changes = {**EXPERTS, **SCANNED, "model.feed_forward.losses_over": over}
    program = setup.prepare_experiment(
        read_experiment(trials.experiment_dict(tmp_path, **changes))
    ).program
    rng = np.random.default_rng(0)
    batch = jax.tree.map(lambda x: jnp.asarray(rng.integers(1, 9, x.shape), x.dtype), program.batch)
    before = tiny_runs.any_state(program)
    old = biases_of(before.params)
    state, metrics = program.train_step(before, batch)
    # each of two layers adds at least balance * 1; of both together, each of two choices of a token
    assert 1.0 <= metrics["load_balancing"] < 2.0
    due = metrics["nll"] + metrics["load_balancing"]
    np.testing.assert_allclose(metrics["loss"], due, rtol=1e-5)
    assert len(old) == 2
    for layer, moved in enumerate(biases_of(state.params) - old):
        load = [metrics[f"load/decoder/layer_{layer}/{expert}"] for expert in range(8)]
        np.testing.assert_allclose(np.mean(load), 1.0, rtol=1e-6)
        np.testing.assert_allclose(moved, -0.01 * np.sign(np.asarray(load) - 1), atol=1e-6)


def biases_of(params):
    flat = flatten_dict(params, sep="/")
    (biases,) = (leaf for path, leaf in flat.items() if path.endswith("/choice_bias"))
    return np.array(biases)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [{}, {**SCANNED, "mesh.fsdp": 2, "mesh.tensor": 2}],
    ids=["plain", "accumulated, scanned and sharded"],
)
def test_experts_are_balanced_while_they_learn(tmp_path, changes):
    changes = {**EXPERTS, **changes}
    _, records = trials.train(tmp_path, **changes)
    train = [record for record in records if record["split"] == "train"]
    for record in train:  # each of two layers adds at least balance * 1
        assert 1.0 <= record["load_balancing"] < 2.0
        np.testing.assert_allclose(
            record["loss"], record["nll"] + record["load_balancing"], rtol=1e-5
        )
    assert train[-1]["nll"] < train[0]["nll"]
    assert "load_balancing" not in records[-1], "held-out loss is the objective's own"
    assert trials.resolved(tmp_path)["model"]["feed_forward"]["balance"] == 0.5
