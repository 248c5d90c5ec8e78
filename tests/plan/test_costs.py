"""Costs and findings, read from text such as the TPU compiler writes."""

import pytest

from flaxformer_lite.analysis import hlo
from flaxformer_lite.plan import costs
from flaxformer_lite.plan.topology import CHIPS

MESH = {"data": 2, "fsdp": 4, "tensor": 1}
STEP = """HloModule jit_step

%fused (p: f32[8]) -> f32[8] {
  ROOT %inner = f32[8] add(%p, %p), backend_config={"estimated_cycles":"999999"}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %m = f32[8] fusion(%x), kind=kLoop, calls=%fused, \
metadata={op_name="jit(step)/transpose(jvp(Model.features))/layers/mlp/up/dot"}, \
backend_config={"estimated_cycles":"3000"}
  %g = bf16[1024,1024] all-gather(%w), channel_id=1, \
replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}

%until (t: (s32[], f32[8])) -> pred[] {
  %n = s32[] constant(10)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %l = (s32[], f32[8]) while(%t), condition=%until, body=%body
  %r = f32[262144] all-reduce(%d), channel_id=2, \
replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  ROOT %o = f32[8] fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/mul"}, \
backend_config={"estimated_cycles":"1500"}
}
"""


def test_cycles_and_bytes_count_every_turn_of_a_loop():
    chip = CHIPS["v5e"]
    found = costs.of(hlo.parse(STEP), chip, MESH, 1)
    assert found.parts == pytest.approx(
        {"feed-forward, backward": 10 * 3000 / 1.5e9, "optimizer and the rest": 1e-6}
    )
    gather, reduce = found.exchanges
    assert (gather.kind, gather.axes, gather.bytes, gather.count) == (
        "all-gather",
        ("fsdp",),
        10 * 2**21,
        10,
    )
    assert (reduce.kind, reduce.axes, reduce.bytes) == ("all-reduce", ("data",), 2**20)
    # A ring of four sends three quarters of what is gathered; of two, all of what is reduced, there
    # and back.
    assert gather.seconds == pytest.approx((0.75 * 10 * 2**21 / 180e9, 0.75 * 10 * 2**21 / 90e9))
    assert reduce.seconds[1] == pytest.approx(2**20 / 90e9)
    low, high = found.seconds
    assert high == pytest.approx(21e-6 + gather.seconds[1] + reduce.seconds[1]) and low < high
    assert found.largest(1)[0][0] == "all-gather over fsdp"


def test_traffic_is_exposed_but_for_what_computation_carries_on():
    (gather,) = (line for line in STEP.splitlines() if "all-gather" in line)
    fusion = f"%async_collective_fusion.1 (p: f32[8]) -> f32[8] {{\n{gather}\n}}\n"
    carried = STEP.replace(gather, "").replace(
        'calls=%fused, metadata={op_name="jit(step)/transpose',
        'calls=%async_collective_fusion.1, metadata={op_name="jit(step)/transpose',
    )
    carried = carried.replace("ENTRY", fusion + "\nENTRY")
    waits, hides = (costs.of(hlo.parse(text), CHIPS["v5e"], MESH, 1) for text in (STEP, carried))
    assert waits.scheduled == pytest.approx(waits.seconds[1])
    # Of the gather's 17.5 us a turn the product's 2 us hide as much.
    assert waits.scheduled - hides.scheduled == pytest.approx(10 * 3000 / 1.5e9)


def test_what_leaves_a_slice_goes_over_the_network():
    chip = CHIPS["v5e"]
    inside, across = (
        costs.of(hlo.parse(STEP), chip, MESH, slices).exchanges[1] for slices in (1, 2)
    )
    assert across.seconds[1] == pytest.approx(inside.seconds[1] * chip.link / chip.network)


def test_a_kernel_with_heads_side_by_side_is_counted_as_one_with_heads_apart():
    kernel = (
        "%relative_bwd.1 = (bf16[4,512,128]) custom-call(%a, %b),"
        ' custom_call_target="tpu_custom_call", operand_layout_constraints={bf16[4,512,128]{2,1,0},'
        " bf16[4,256,128]{2,1,0}, bf16[4,256,128]{2,1,0}, f32[2,1,768]{2,1,0}}, metadata={}"
    )
    (op,) = hlo.parse(
        f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {kernel}\n}}\n"
    ).computations["main"]
    assert costs.kernel_flops(op) == 5 * 2 * 4 * 512 * 256 * 128


def test_kernels_are_counted_by_the_shapes_they_take():
    kernel = (
        "ROOT %splash_mha_dkv_no_residuals.1 = (bf16[4,2,512,32]) custom-call(%a, %b),"
        ' custom_call_target="tpu_custom_call", operand_layout_constraints={s8[1,1,1]{2,1,0},'
        " bf16[4,8,512,32]{3,2,1,0}, bf16[4,2,256,32]{3,2,1,0}},"
        ' metadata={op_name="jit(s)/transpose(jvp(Model))/attention/vmap()/pallas_call"}'
    )
    text = f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {kernel}\n}}\n"
    found = costs.of(hlo.parse(text), CHIPS["v5e"], MESH, 1, seen=0.5)
    flops = 4 * 2 * 4 * 8 * 512 * 256 * 32
    assert found.parts == pytest.approx({"attention, backward": 0.5 * flops / 197e12 / 0.5})


@pytest.mark.parametrize(
    ("name", "operands", "result"),
    [
        ("ragged-dot-none.1", "s32[9]{0}, bf16[64,16]{1,0}, bf16[4,16,8]{2,1,0}", "bf16[64,8]"),
        ("gmm.9", "s32[5]{0}, bf16[64,16]{1,0}, bf16[4,16,8]{2,1,0}", "bf16[64,8]"),
        ("transpose_jvp_jit_tgmm___.2", "bf16[64,16]{1,0}, bf16[64,8]{1,0}", "bf16[4,16,8]"),
    ],
)
def test_products_of_groups_count_each_row_once(name, operands, result):
    kernel = (
        f'ROOT %{name} = {result}{{1,0}} custom-call(%a, %b), custom_call_target="tpu_custom_call",'
        f" operand_layout_constraints={{{operands}}}, metadata={{op_name="
        '"jit(s)/jvp(Model)/mlp/experts/ragged_dot_general"}'
    )
    text = f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {kernel}\n}}\n"
    found = costs.of(hlo.parse(text), CHIPS["v5p"], MESH, 1, seen=0.5)
    flops = 2 * 64 * 16 * 8
    assert found.parts == pytest.approx({"feed-forward, forward": flops / 459e12 / 0.5})


def test_a_kernel_of_all_gradients_takes_five_products():
    kernel = (
        "%splash_mha_dkv_no_residuals.1 = (f32[4,256,32], bf16[4,1,8,512,32], bf16[4,2,256,32],"
        ' bf16[4,2,256,32]) custom-call(%a, %b), custom_call_target="tpu_custom_call",'
        " operand_layout_constraints={s8[1,1,1]{2,1,0}, bf16[4,8,512,32]{3,2,1,0},"
        " bf16[4,2,256,32]{3,2,1,0}}, metadata={}"
    )
    (op,) = hlo.parse(
        f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {kernel}\n}}\n"
    ).computations["main"]
    assert costs.kernel_flops(op) == 5 * 2 * 4 * 8 * 512 * 256 * 32
