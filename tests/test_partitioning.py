import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite import partitioning
from flaxformer_lite.config import ConfigError, MeshConfig, OptimizerConfig
from flaxformer_lite.training import optimizer, state, step
from tests.training import toy


def mesh_of(data, fsdp, tensor):
    return partitioning.build_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))


def spec(**shapes):
    return {name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)} for name, shape in shapes.items()}


def test_rest_of_the_devices_goes_to_minus_one():
    assert dict(mesh_of(-1, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert dict(mesh_of(2, 1, 2).shape) == {"data": 2, "fsdp": 1, "tensor": 2}  # the first four of eight


@pytest.mark.parametrize(
    ("sizes", "message"), [((16, 1, 1), "needs 16 devices, there are 8"), ((-1, 3, 1), "8 devices do not divide by 3")]
)
def test_impossible_mesh(sizes, message):
    with pytest.raises(ConfigError, match=message):
        mesh_of(*sizes)


def test_first_rule_wins_and_a_leading_scan_axis_stays_whole():
    rules = ((r"up/kernel$", ("fsdp", "tensor")), (r"kernel$", (None, "fsdp")))
    got = partitioning.param_specs(spec(up=(3, 4, 6), down=(4, 6)), rules, mesh_of(2, 2, 2))
    assert got["up"]["kernel"] == P(None, "fsdp", "tensor")
    assert got["down"]["kernel"] == P(None, "fsdp")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (((r"up/kernel$", ()),), r"no partition rule matches parameter down/kernel \(4, 6\)"),
        (((r"kernel$", ()), (r"gate/kernel$", ())), r"match no parameter: 'gate/kernel\$'"),
        (
            ((r"kernel$", ("tensor", "fsdp")),),
            r"up/kernel \(3, 6\): a dimension of 3 does not divide over mesh.tensor=2",
        ),
        (((r"kernel$", ("fsdp", "fsdp")),), "uses a mesh axis twice"),
        (((r"kernel$", ("model", None)),), "no mesh axis 'model'"),
        (((r"kernel$", (None, None, "fsdp")),), "names 3 dimensions"),
    ],
)
def test_rules_are_strict(rules, message):
    with pytest.raises(ConfigError, match=message):
        partitioning.param_specs(spec(up=(3, 6), down=(4, 6)), rules, mesh_of(2, 2, 2))


def test_batch_must_split_evenly():
    partitioning.check_batch(16, 2, mesh_of(4, 2, 1))
    with pytest.raises(ConfigError, match=r"need a multiple of 16; try train.batch_size=16"):
        partitioning.check_batch(8, 2, mesh_of(4, 2, 1))


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lion", "sgd", "muon"])
def test_optimizer_state_lies_where_its_parameter_lies(name):
    tx = optimizer.build(OptimizerConfig(name=name), 10)
    mesh = mesh_of(2, 2, 2)
    shapes = jax.eval_shape(lambda: state.create(toy.init, tx))
    shardings = partitioning.state_shardings(shapes, toy.RULES, mesh)
    assert shardings.params["up"]["kernel"].spec == P("fsdp", "tensor")
    momenta = [
        (state.path_of(keys), sharding.spec)
        for keys, sharding in jax.tree_util.tree_leaves_with_path(shardings.opt_state)
        if "up/kernel" in state.path_of(keys) and "v_" not in state.path_of(keys)
    ]
    assert momenta and all(s == P("fsdp", "tensor") for _, s in momenta)


def run(mesh, steps=2, accumulate=1):
    cfg = OptimizerConfig(learning_rate=1e-2, warmup_steps=1, schedule="constant")
    tx = optimizer.build(cfg, 10)
    current, shardings = partitioning.init_state(lambda: state.create(toy.init, tx), toy.RULES, mesh)
    pure = step.train_step(
        toy.features(toy.Toy()), toy.NextToken(), tx, optimizer.schedule(cfg, 10),
        dropout_key=None, accumulate=accumulate, chunks=1,
    )  # fmt: skip
    train = partitioning.jit_step(pure, shardings, mesh)
    for index in range(steps):
        current, metrics = train(current, partitioning.place_batch(toy.batch(16, index), mesh))
    return train, current, metrics


@functools.cache
def alone():
    return run(mesh_of(1, 1, 1))


@pytest.mark.parametrize(("sizes", "accumulate"), [((8, 1, 1), 1), ((1, 8, 1), 1), ((2, 2, 2), 1), ((2, 2, 2), 2)])
def test_any_mesh_equals_one_device(sizes, accumulate):
    _, reference, reference_metrics = alone()
    _, spread, metrics = run(mesh_of(*sizes), accumulate=accumulate)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), reference.params, spread.params)
    np.testing.assert_allclose(metrics["loss"], reference_metrics["loss"], rtol=1e-5)
    kernel = spread.params["up"]["kernel"]
    assert kernel.addressable_shards[0].data.size * sizes[1] * sizes[2] == kernel.size


def test_anchors_bind_inside_the_step_and_batches_are_split():
    mesh = mesh_of(2, 2, 2)
    train, current, _ = run(mesh, steps=1)
    batch = partitioning.place_batch(toy.batch(16), mesh)
    assert str(jax.make_jaxpr(train)(current, batch)).count("sharding_constraint") >= 2
    assert batch["inputs"]["input_ids"].addressable_shards[0].data.shape == (4, toy.LENGTH)
    assert "sharding_constraint" not in str(
        jax.make_jaxpr(toy.features(toy.Toy()))(current.params, batch["inputs"], None)
    )


def test_an_indivisible_activation_stays_whole():
    mesh = mesh_of(2, 2, 2)
    odd = partitioning._anchored(lambda _, x: toy.shard_act(x, "BTKH"), mesh)
    assert jax.jit(odd)(0, jnp.ones((4, 2, 1, 2))).sharding.spec == P(("data", "fsdp"))
