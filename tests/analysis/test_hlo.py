"""Reading the text of compiled programs: of programs compiled here, and of lines from other
backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.analysis import hlo

MESH = {"data": 2, "fsdp": 4}


@pytest.fixture(scope="module")
def scanned():
    """Eight layers, their weights split over `fsdp`, the rows over `data`, as compiled for eight
    devices."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), tuple(MESH))

    def loss(w, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()

    split = NamedSharding(mesh, P(None, "fsdp"))
    rows = NamedSharding(mesh, P("data"))
    step = jax.jit(jax.grad(loss), in_shardings=(split, rows), out_shardings=split)
    shapes = (
        jax.ShapeDtypeStruct((8, 64, 64), jnp.float32),
        jax.ShapeDtypeStruct((16, 64), jnp.float32),
    )
    return hlo.parse(step.lower(*shapes).compile().as_text())


def test_loops_count_each_turn_and_axes_are_named(scanned):
    found = hlo.collectives(scanned)
    moved = {(c.kind, hlo.mesh_axes(c.groups, MESH), c.times) for c in found}
    # activations or weights, in every layer
    assert any(axes == ("fsdp",) and times == 8 for _, axes, times in moved)
    gradients = [c for c in found if hlo.mesh_axes(c.groups, MESH) == ("data",)]
    assert sum(c.bytes * c.times for c in gradients) == 8 * 64 * 64 * 4 // 4
    assert all(visit.exact for visit in hlo.visits(scanned))


def test_what_is_fused_is_told_from_what_has_a_buffer(scanned):
    tanh = [v for v in hlo.visits(scanned) if v.op.kind == "tanh"]
    assert tanh and all(v.times == 8 for v in tanh)
    assert any(v.inside for v in hlo.visits(scanned)) and any(
        not v.inside for v in hlo.visits(scanned)
    )


def program(*lines, other=""):
    body = "\n".join(f"  {line}" for line in lines)
    return hlo.parse(f"HloModule m\n{other}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("text", "groups", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ((0, 1, 2, 3), (4, 5, 6, 7)), ("fsdp",)),
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7)), ("fsdp",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7)), ("data",)),
        (
            "replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
            ("fsdp",),
        ),
        (
            "replica_groups=mesh['a'=8,'b'=1] {'a','b'}",
            ((0, 1, 2, 3, 4, 5, 6, 7),),
            ("data", "fsdp"),
        ),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7)), ("fsdp",)),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7)), ("data",)),
        ("replica_groups={}", (), ("data", "fsdp")),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0)), ("fsdp",)),
    ],
)
def test_every_notation_of_groups(text, groups, axes):
    (found,) = hlo.collectives(
        program(f"ROOT %r = f32[8]{{0:T(8)}} all-reduce(%p), channel_id=1, {text}, to_apply=%add")
    )
    assert found.groups == groups and hlo.mesh_axes(found.groups, MESH) == axes


def test_axes_of_one_device_are_not_named():
    assert hlo.mesh_axes((), {"data": 1, "fsdp": 8}) == ("fsdp",)


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        (
            (
                "(bf16[2,8]{1,0:T(8,128)(2,1)}, /*index=1*/f32[]) all-reduce(%p, %q),"
                " replica_groups={{0,1}}"
            ),
            "all-reduce",
            36,
        ),
        (
            "(f32[8], f32[32]) all-gather-start(%p), replica_groups={{0,1,2,3}}, dimensions={0}",
            "all-gather",
            128,
        ),
        (
            "f32[8] reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}",
            "reduce-scatter",
            128,
        ),
        (
            (
                "(s8[64], s8[64], u32[], u32[]) collective-permute-start(%p),"
                " source_target_pairs={{0,1}}"
            ),
            "collective-permute",
            64,
        ),
        ("pred[64] all-to-all(%p), replica_groups={{0,1}}", "all-to-all", 64),
    ],
)
def test_bytes_of_each_kind(line, kind, size):
    (found,) = hlo.collectives(program(f"%r = {line}, channel_id=3"))
    assert (found.kind, found.bytes) == (kind, size)


def test_a_ragged_exchange_sends_at_most_what_its_smaller_side_holds():
    call = "ragged-all-to-all({}, /*index=1*/%zeros), channel_id=3, replica_groups={{{{0,1}}}}"
    module = program(
        "%few = bf16[8,4] negate(%p)",
        "%many = bf16[64,4] " + call.format("bf16[8,4] %few"),
        "ROOT %back = bf16[8,4] " + call.format("%many"),
    )
    assert [c.bytes for c in hlo.collectives(module)] == [64, 64]


def test_one_channel_in_several_fusions_is_one_exchange_and_a_fused_scatter_is_a_scatter():
    gather = "  %g = f32[64] all-gather(%p), channel_id=5, replica_groups={{0,1}}, dimensions={0}"
    reduce = "  %r = f32[64] all-reduce(%p), channel_id=6, replica_groups={{0,1}}, to_apply=%add"
    other = (
        f"%part.1 (p: f32[32]) -> f32[64] {{\n{gather}\n}}\n%part.2 (p: f32[32]) -> f32[64]"
        f" {{\n{gather}\n}}\n%all-reduce-scatter.1 (p: f32[64]) -> f32[32] {{\n{reduce}\n}}\n"
    )
    module = program(
        "%a = f32[64] fusion(%p), kind=kCustom, calls=%part.1",
        "%b = f32[64] fusion(%a), kind=kCustom, calls=%part.2",
        "ROOT %c = f32[32] fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1",
        other=other,
    )
    assert [(c.kind, c.bytes) for c in hlo.collectives(module)] == [
        ("all-gather", 256),
        ("reduce-scatter", 256),
    ]


def test_a_gather_carried_on_by_a_product_is_beside_it():
    gather = "  %g = f32[64] all-gather(%p), channel_id=5, replica_groups={{0,1}}, dimensions={0}"
    other = (
        f"%start.1 (p: f32[32]) -> f32[64] {{\n{gather}\n}}\n"
        f"%async_collective_fusion.2 (p: f32[32]) -> f32[64] {{\n{gather}\n}}\n"
    )
    module = program(
        "%a = f32[64] fusion(%p), kind=kCustom, calls=%start.1",
        "%b = f32[64] fusion(%a), kind=kCustom, calls=%async_collective_fusion.2",
        "ROOT %c = f32[64] all-gather(%q), channel_id=6, replica_groups={{0,1}}, dimensions={0}",
        other=other,
    )
    assert [[op.name for op in c.beside] for c in hlo.collectives(module)] == [["b"], []]


def test_exchanges_written_by_hand_share_a_channel_and_are_several():
    permute = "f32[8] collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    assert len(hlo.collectives(program(f"%a = {permute}", f"ROOT %b = {permute}"))) == 2


def test_a_loop_without_a_constant_bound_is_marked():
    loop = "%w = (s32[], f32[8]) while(%t), condition=%until, body=%body"
    until = (
        "%until (t: (s32[], f32[8])) -> pred[] {{\n{}  ROOT %lt = pred[] compare(%i, %n),"
        " direction=LT\n}}\n"
    )
    body = "%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {\n  %x = f32[8] add(%a, %b)\n}\n"

    def of(constant):
        return [
            (v.times, v.exact)
            for v in hlo.visits(program(loop, other=until.format(constant) + body))
            if v.op.name == "x"
        ]

    assert of("  %n = s32[]{:T(128)} constant(12)\n") == [(12, True)]
    assert of("") == [(1, False)]
