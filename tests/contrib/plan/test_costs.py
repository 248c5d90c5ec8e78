"""Costs and findings, read from text such as the TPU compiler writes."""

import pytest

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan import costs
from flaxformer_lite.contrib.plan.topology import CHIPS

MESH = {"data": 2, "fsdp": 4, "tensor": 1}
STEP = """HloModule jit_step

%fused (p: f32[8]) -> f32[8] {
  ROOT %inner = f32[8] dot(%p, %p), backend_config={"estimated_cycles":"999999"}
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
    assert (gather.kind, gather.axes) == ("all-gather", ("fsdp",))
    assert (gather.bytes, gather.count) == (10 * 2**21, 10)
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
    inner = f"  %d = f32[8] dot(%p, %p)\n{gather}\n"
    fusion = f"%async_collective_fusion.1 (p: f32[8]) -> f32[8] {{\n{inner}}}\n"
    backward = ', metadata={op_name="jit(step)/transpose'
    carried = STEP.replace(gather, "").replace("ENTRY", fusion + "\nENTRY")
    carried = carried.replace(f"%fused{backward}", f"%async_collective_fusion.1{backward}")
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


KERNEL = """HloModule m

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %gmm.9 = bf16[64,8]{1,0} custom-call(%a, %b), custom_call_target="tpu_custom_call", \
operand_layout_constraints={s32[5]{0}}, metadata={op_name="jit(s)/jvp(Model)/mlp/experts/gmm"}
}
"""


def test_hand_written_kernels_are_named_and_have_no_time():
    found = costs.of(hlo.parse(KERNEL), CHIPS["v5p"], MESH, 1)
    assert found.parts == {} and found.untimed == ("gmm",)


STREAMS = """HloModule m

%sum (p: f32[4,1048576]) -> f32[1048576] {
  ROOT %s = f32[1048576] reduce(%p), to_apply=%add
}

%take (p: f32[4,1048576]) -> f32[1048576] {
  ROOT %g = f32[1048576] gather(%p)
}

ENTRY %main (p: f32[4,1048576]) -> f32[1048576] {
  %p = f32[4,1048576] parameter(0)
  ROOT %o = f32[1048576] fusion(f32[4,1048576] %p), kind=kLoop, calls=%sum, \
backend_config={"estimated_cycles":"1500000"}
}
"""


def test_a_fusion_takes_no_longer_than_moving_its_arrays_at_half_of_the_bandwidth():
    chip = CHIPS["v5e"]
    (seconds,) = costs.of(hlo.parse(STREAMS), chip, MESH, 1).parts.values()
    assert seconds == pytest.approx(5 * 4 * 2**20 / (0.5 * chip.bandwidth))
    (quick,) = costs.of(hlo.parse(STREAMS.replace("1500000", "15")), chip, MESH, 1).parts.values()
    assert quick == pytest.approx(15 / chip.clock)


@pytest.mark.parametrize("kind", ["gather", "xor"])
def test_fusions_that_read_out_of_order_or_compute_keep_the_compilers_cycles(kind):
    text = STREAMS.replace("calls=%sum", "calls=%take").replace("gather(%p)", f"{kind}(%p)")
    (seconds,) = costs.of(hlo.parse(text), CHIPS["v5e"], MESH, 1).parts.values()
    assert seconds == pytest.approx(1e-3)
