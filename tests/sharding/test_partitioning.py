import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite import registry, sharding
from flaxformer_lite.analysis import hlo
from flaxformer_lite.config import ConfigError, MeshConfig, OptimizerConfig
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import optimizer, state, step
from tests.training import toy


def mesh_of(data, fsdp, tensor, context=1):
    return sharding.build_mesh(MeshConfig(data=data, fsdp=fsdp, context=context, tensor=tensor))


def spec(**shapes):
    return {
        name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)} for name, shape in shapes.items()
    }


def axes_of(mesh):
    """The sizes of the axes data, fsdp, expert, context and tensor."""
    assert list(mesh.shape) == ["data", "fsdp", "expert", "context", "tensor"]
    return tuple(mesh.shape.values())


def test_rest_of_the_devices_goes_to_minus_one():
    assert axes_of(mesh_of(-1, 2, 2)) == (2, 2, 1, 1, 2)
    assert axes_of(mesh_of(2, -1, 1, context=2)) == (2, 2, 1, 2, 1)
    assert axes_of(mesh_of(2, 1, 2)) == (2, 1, 1, 1, 2)  # the first four of eight


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((16, 1, 1), "needs 16 devices, there are 8"), ((-1, 3, 1), "8 devices do not divide by 3")],
)
def test_impossible_mesh(sizes, message):
    with pytest.raises(ConfigError, match=message):
        mesh_of(*sizes)


@dataclasses.dataclass(frozen=True)
class Chip:
    """The attributes of a device, or of the description of one."""

    id: int
    slice_index: int
    process_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "fake"


CHIPS = [
    Chip(id, slice_index=id % 2, process_index=id // 4, coords=(id // 2, 0, 0)) for id in range(8)
]


def test_slices_are_the_outer_part_of_data():
    mesh = sharding.build_mesh(MeshConfig(slices=2, fsdp=2), CHIPS)
    assert axes_of(mesh) == (4, 2, 1, 1, 1)
    assert [{chip.slice_index for chip in row.flat} for row in mesh.devices] == [{0}, {0}, {1}, {1}]
    # devices that know of no slices
    groups = sharding.build_mesh(MeshConfig(slices=2, fsdp=2)).devices
    ids = [[device.id for device in row.flat] for row in groups]
    np.testing.assert_array_equal(ids, np.arange(8).reshape(4, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"slices": 1}, "the devices form 2 slices; set mesh.slices=2"),
        ({"slices": 4}, "the devices form 2 slices; set mesh.slices=2"),
        ({"slices": 2, "fsdp": 8}, "mesh.data is 1, no multiple of mesh.slices=2"),
        ({"data": 4}, r"4 of 8.*processes"),
    ],
)
def test_impossible_slices(sizes, message):
    with pytest.raises(ConfigError, match=message):
        sharding.build_mesh(MeshConfig(**sizes), CHIPS)


@pytest.mark.parametrize(
    ("sizes", "count", "hint"),
    [
        ({"fsdp": 64}, 16, "mesh.fsdp=16"),
        ({"fsdp": 64}, 96, "mesh.fsdp=32"),
        ({"fsdp": 64, "tensor": 4}, 16, "mesh.fsdp=4"),
        ({"fsdp": 2, "tensor": 16}, 8, "mesh.tensor=4"),
        ({"fsdp": 64, "tensor": 32}, 16, "mesh.data=-1, others 1"),
        ({"fsdp": 3, "tensor": 2}, 16, "mesh.fsdp=1"),
    ],
)
def test_a_mesh_for_more_devices_keeps_its_largest_axis(sizes, count, hint):
    with pytest.raises(ConfigError, match=f"{count}.*; try {hint}[.]$"):
        sharding.mesh_sizes(MeshConfig(**sizes), count)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": 3, "slices": 2}, r"multiple of the slices; try mesh.data=4"),
        (
            {"mode": "pmap", "tensor": 2},
            r"mesh.mode='pmap', .*mesh.tensor=2:.*splits",
        ),
        ({"mode": "pjit"}, "no 'pjit'.*choose from jit, shard_map, pmap"),
        ({"mode": "pmap", "shard_over_data": True}, "mesh.shard_over_data.*or mesh.mode=jit"),
        ({"slices": 2, "shard_over_data": True}, "slice; set mesh.shard_over_data=False, or"),
        ({"slices": 0}, "slices=0: must be positive"),
    ],
)
def test_mesh_fields_are_checked_at_the_door(fields, message):
    with pytest.raises(ConfigError, match=message):
        MeshConfig(**fields)


def test_first_rule_wins_and_a_leading_scan_axis_stays_whole():
    rules = ((r"up/kernel$", ("fsdp", "tensor")), (r"kernel$", (None, "fsdp")))
    got = sharding.param_specs(spec(up=(3, 4, 6), down=(4, 6)), rules, mesh_of(2, 2, 2))
    assert got["up"]["kernel"] == P(None, "fsdp", "tensor")
    assert got["down"]["kernel"] == P(None, "fsdp")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (((r"up/kernel$", ()),), r"no partition.*down/kernel \(4, 6\)"),
        (((r"kernel$", ()), (r"gate/kernel$", ())), r"match no parameter: 'gate/kernel\$'"),
        (
            ((r"kernel$", ("tensor", "fsdp")),),
            r"up/kernel \(3, 6\): a dimension of 3.*not divide.*mesh.tensor=2",
        ),
        (((r"kernel$", ("fsdp", "fsdp")),), "uses a mesh axis twice"),
        (((r"kernel$", ("model", None)),), "no mesh axis 'model'; choose from data, "),
        (((r"kernel$", (None, None, "fsdp")),), "names 3 dimensions"),
    ],
)
def test_rules_are_strict(rules, message):
    with pytest.raises(ConfigError, match=message):
        sharding.param_specs(spec(up=(3, 6), down=(4, 6)), rules, mesh_of(2, 2, 2))


def test_what_every_device_holds_whole_is_named_with_its_rule():
    rules = ((r"up/kernel$", ("fsdp", None)), (r"kernel$", ()))
    leaves = spec(up=(4, 6), down=(4, 6), small=(2, 2))
    found = sharding.list_replicated(leaves, rules, mesh_of(2, 2, 1), at_least=96)
    assert found == [("down/kernel", 96, "kernel$")]
    # nothing is split, by design
    assert not sharding.list_replicated(leaves, rules, mesh_of(8, 1, 1), at_least=96)


def test_weights_are_split_over_data_too_where_it_divides():
    rules = ((r"wide/kernel$", ("fsdp", "tensor")), (r"kernel$", (None, ("tensor", "fsdp"))))
    params = spec(wide=(3, 8, 6), narrow=(8, 4))
    tx = optimizer.build(OptimizerConfig(schedule="constant"), 10)
    shapes = jax.eval_shape(lambda params: state.create(lambda: params, tx), params)
    mesh = mesh_of(2, 2, 2)
    found = sharding.state_shardings(shapes, rules, mesh, over_data=True)
    specs = {str(leaf.spec) for leaf in jax.tree.leaves(found.opt_state)}
    wide = found.params["wide"]["kernel"].spec
    narrow = found.params["narrow"]["kernel"].spec
    assert wide == P(None, ("fsdp", "data"), "tensor")
    assert narrow == P(None, ("tensor", "fsdp"))  # 4 columns do not divide over 8 devices
    assert specs == {str(wide), str(narrow), str(P())}


def test_a_weight_is_gathered_over_data_alone_before_its_use():
    rules = ((r"up/kernel$", ("fsdp", "tensor")),)
    mesh = mesh_of(2, 2, 2)
    gathering = sharding.GatheringSharding(mesh, rules=rules)
    weight = jax.ShapeDtypeStruct((8, 6), jnp.bfloat16)

    def constraints(path):
        program = jax.make_jaxpr(lambda x: gathering.gather_weight(x, path))(weight)
        return [equation.params["sharding"].spec for equation in program.eqns]

    stored = P(("fsdp", "data"), "tensor")
    assert constraints("layers/block_0/mlp/up/kernel") == [stored, P("fsdp", "tensor")]
    assert constraints("norm/scale") == []


def test_batch_must_split_evenly():
    sharding.check_batch(16, 2, mesh_of(4, 2, 1))
    with pytest.raises(ConfigError, match=r"multiple of 16; try train.batch_size=16"):
        sharding.check_batch(8, 2, mesh_of(4, 2, 1))


@pytest.mark.parametrize("name", registry.available("optimizers"))
def test_optimizer_state_lies_where_its_parameter_lies(name):
    tx = optimizer.build(OptimizerConfig(name=name, schedule="constant"), 10)
    mesh = mesh_of(2, 2, 2)
    shapes = jax.eval_shape(lambda: state.create(toy.init, tx))
    shardings = sharding.state_shardings(shapes, toy.RULES, mesh)
    assert shardings.params["up"]["kernel"].spec == P("fsdp", "tensor")
    momenta = [
        (path_of(keys), sharding.spec)
        for keys, sharding in jax.tree_util.tree_leaves_with_path(shardings.opt_state)
        if "up/kernel" in path_of(keys) and "v_" not in path_of(keys)
    ]
    assert momenta and all(s == P("fsdp", "tensor") for _, s in momenta)


def run(mesh, steps=2, accumulate=1, mode="jit", name="adamw"):
    cfg = OptimizerConfig(name=name, learning_rate=1e-2, warmup_steps=1, schedule="constant")
    tx = optimizer.build(cfg, 10)
    init = functools.partial(state.create, toy.init, tx)
    shardings = sharding.state_shardings(jax.eval_shape(init), toy.RULES, mesh)
    current = jax.jit(init, out_shardings=shardings)()
    placed = sharding.MeshSharding(mesh)
    placed = placed if mode == "jit" else placed.inside_shard()
    pure = step.train_step(
        toy.features(toy.Toy(sharding=placed)),
        toy.NextToken(),
        tx,
        optimizer.schedule(cfg, 10),
        dropout_key=None,
        accumulate=accumulate,
        chunks=1,
        axis_name=None if mode == "jit" else sharding.DATA,
    )
    train = sharding.jit_step(pure, shardings, mesh, mode)
    for index in range(steps):
        current, metrics = train(current, sharding.place_batch(toy.batch(16, index), mesh))
    return train, current, metrics


@functools.cache
def alone():
    return run(mesh_of(1, 1, 1))


@pytest.mark.parametrize(
    ("sizes", "accumulate"),
    [
        pytest.param((8, 1, 1), 1, marks=pytest.mark.nightly),
        pytest.param((1, 8, 1), 1, marks=pytest.mark.nightly),
        pytest.param((2, 2, 2), 1, marks=pytest.mark.nightly),
        ((2, 2, 2), 2),
    ],
)
def test_any_mesh_equals_one_device(sizes, accumulate):
    _, reference, reference_metrics = alone()
    _, spread, metrics = run(mesh_of(*sizes), accumulate=accumulate)
    chex.assert_trees_all_close(reference.params, spread.params, rtol=1e-7, atol=1e-05)
    np.testing.assert_allclose(metrics["loss"], reference_metrics["loss"], rtol=1e-5)
    kernel = spread.params["up"]["kernel"]
    assert kernel.addressable_shards[0].data.size * sizes[1] * sizes[2] == kernel.size


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["examples.adam_mini:make", "muon", "muon_spectral", "schedule_free"]
)
def test_so_it_does_with_other_optimizers(name):
    _, reference, _ = run(mesh_of(1, 1, 1), name=name)
    _, spread, _ = run(mesh_of(2, 2, 2), name=name)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(close, reference, spread)


def test_modes_written_by_hand_equal_each_other_to_the_bit_and_jit_to_rounding():
    mesh = mesh_of(4, 1, 1)
    (_, by_jit, jit_metrics), (_, mapped, metrics), (_, pmapped, pmap_metrics) = (
        run(mesh, accumulate=2, mode=mode) for mode in ("jit", "shard_map", "pmap")
    )
    jax.tree.map(np.testing.assert_array_equal, (mapped, metrics), (pmapped, pmap_metrics))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    jax.tree.map(close, (by_jit, jit_metrics), (mapped, metrics))
    assert jax.tree.map(np.shape, pmapped) == jax.tree.map(np.shape, by_jit)


def test_pmap_is_for_one_process(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"single process only; try mesh.mode=shard_map"):
        sharding.build_mesh(MeshConfig(mode="pmap"))


def test_accumulated_gradients_lie_where_their_parameters_lie():
    """The sums of microbatches are carried by a loop: no device holds a whole one."""
    mesh = mesh_of(1, 4, 2)
    train, current, _ = run(mesh, steps=1, accumulate=2)
    batch = sharding.place_batch(toy.batch(16), mesh)
    text = train.lower(current, batch).compile().as_text()
    loops = [visit.op for visit in hlo.visits(hlo.parse(text)) if visit.op.kind == "while"]
    carried = {array.shape for loop in loops for array in loop.arrays}
    wide = toy.WIDTH
    deep = 4 * toy.WIDTH
    assert {(wide // 4, deep // 2), (deep // 2, wide // 4)} <= carried
    assert not {(wide, deep), (deep, wide)} & carried


def test_activations_of_the_step_are_constrained_and_batches_are_split():
    mesh = mesh_of(2, 2, 2)
    train, current, _ = run(mesh, steps=1)
    batch = sharding.place_batch(toy.batch(16), mesh)
    assert str(jax.make_jaxpr(train)(current, batch)).count("sharding_constraint") >= 2
    assert batch["inputs"]["input_ids"].addressable_shards[0].data.shape == (4, toy.LENGTH)
    assert "sharding_constraint" not in str(
        jax.make_jaxpr(toy.features(toy.Toy()))(current.params, batch["inputs"], None)
    )
