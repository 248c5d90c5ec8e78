"""Traces as the profiler writes them on each kind of device."""

import jax
import pytest

from flaxformer_lite.analysis import trace

PROGRAM = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: bf16[8,128]) -> bf16[8,128] {
  %x = bf16[8,128] parameter(0)
  %fusion.1 = bf16[8,128] fusion(%x), kind=kOutput, metadata={op_name="SOURCE"}
  ROOT %copy.2 = f32[8] copy(%fusion.1), metadata={op_name="jit(step)/mul"}
}
"""
PROGRAM = PROGRAM.replace(
    "SOURCE",
    "jit(step)/transpose(jvp(Model.features))/Model.decode/decoder/layer_0/mlp/up/dot_general",
)
NAMES = """
  event_metadata { key: 1 value { id: 1 name: "%fusion.1 = bf16[8,128] fusion(%x), kind=kOutput" } }
  event_metadata { key: 2 value { id: 2 name: "copy.2" } }
  event_metadata { key: 3 value { id: 3 name: "jit_step" } }
  event_metadata { key: 4 value { id: 4 name: "while.5" } }
  stat_metadata { key: 1 value { id: 1 name: "flops" } }
  stat_metadata { key: 2 value { id: 2 name: "bytes_accessed" } }
  stat_metadata { key: 3 value { id: 3 name: "hlo_op" } }
  stat_metadata { key: 4 value { id: 4 name: "hlo_module" } }
  stat_metadata { key: 5 value { id: 5 name: "fusion.1" } }
  stat_metadata { key: 6 value { id: 6 name: "jit_step" } }
  stat_metadata { key: 7 value { id: 7 name: "jit_evaluate" } }
"""
RATES = "stats { metadata_id: 1 uint64_value: 6000000 } stats { metadata_id: 2 uint64_value: 3000 }"
TPU = "".join(
    f"""
planes {{ id: {chip + 1} name: "/device:TPU:{chip}" {NAMES}
  lines {{ id: 1 name: "XLA Modules" events {{ metadata_id: 3 duration_ps: 9000000 }} }}
  lines {{ id: 2 name: "XLA Ops"
    events {{ metadata_id: 4 duration_ps: 8000000 }}
    events {{ metadata_id: 1 duration_ps: 3000000 {RATES} }}
    events {{ metadata_id: 1 offset_ps: 3000000 duration_ps: 3000000 {RATES} }}
    events {{ metadata_id: 2 offset_ps: 6000000 duration_ps: 2000000 }} }} }}"""
    for chip in (0, 1)
)
OURS, OTHERS = (
    f"stats {{ metadata_id: 3 ref_value: 5 }} stats {{ metadata_id: 4 ref_value: {program} }}"
    for program in (6, 7)
)
GPU = f"""
planes {{ id: 1 name: "/host:CPU"
  lines {{ id: 1 name: "python" events {{ metadata_id: 3 duration_ps: 9000000 }} }} {NAMES} }}
planes {{ id: 2 name: "/device:GPU:0" {NAMES}
  lines {{ id: 7 name: "Stream #7(Compute)"
    events {{ metadata_id: 2 duration_ps: 3000000 {OURS} }}
    events {{ metadata_id: 3 duration_ps: 1000000 }} }}
  lines {{ id: 8 name: "Stream #8(Compute)"
    events {{ metadata_id: 2 duration_ps: 1000000 {OURS} }}
    events {{ metadata_id: 2 duration_ps: 5000000 {OTHERS} }} }} }}"""


def rows(text):
    found, devices = trace.rows(jax.profiler.ProfileData.from_text_proto(text), trace.name(PROGRAM))
    return [(row.name, round(1e6 * row.seconds, 3), row.count) for row in found], devices


def test_operations_of_tpus_are_on_a_line_of_each_and_loops_are_not_counted_twice():
    assert rows(TPU) == ([("fusion.1", 12.0, 4), ("copy.2", 4.0, 2)], 2)


def test_operations_of_gpus_are_those_that_their_streams_name():
    assert rows(GPU) == ([("program jit_evaluate", 5.0, 1), ("fusion.1", 4.0, 2)], 1)


def test_operations_of_a_cpu_are_among_what_its_threads_do():
    assert rows(
        GPU.replace("/host:CPU", "/host:metadata").replace("/device:GPU:0", "/host:CPU")
    ) == rows(GPU)
    assert rows('planes { id: 1 name: "Task Environment" }') == ([], 0)


def test_where_the_program_is_unknown_all_operations_are_its():
    (row,), _ = trace.rows(jax.profiler.ProfileData.from_text_proto(GPU))
    assert (row.name, row.count) == ("fusion.1", 3)


def test_a_table_says_what_each_is_and_where_it_is_from():
    found, devices = trace.rows(jax.profiler.ProfileData.from_text_proto(TPU), "jit_step")
    lines = trace.table(found, trace.operations(PROGRAM), 2 * devices)
    assert [" ".join(line.split()) for line in lines] == [
        "share ms a step times operation kind result rate from",
        (
            "75.0% 0.003 1 fusion.1 fusion bf16[8,128] 2 TFLOP/s, 1 GB/s backward"
            " decoder/layer_0/mlp/up/dot_general"
        ),
        "25.0% 0.001 0.5 copy.2 copy f32[8] mul",
        "",
        "share ms a step times part of the step",
        "75.0% 0.003 1 feed-forward, backward",
        "25.0% 0.001 0.5 optimizer and the rest",
    ]
    unknown = trace.table(found, {}, 4)
    assert unknown[0].split() == ["share", "ms", "a", "step", "times", "operation", "rate"]
    assert unknown[-1].split()[-1] == "copy.2" and trace.table([], {}, 4) == [""]
    assert (
        len({line.index("fusion") for line in lines[1:2]} | {lines[0].index("operation")}) == 1
    ), "columns are aligned"


@pytest.mark.parametrize("text", ["", "not a program"])
def test_what_is_no_program_has_no_operations(text):
    assert trace.name(text) == "" and trace.operations(text) == {}
