"""The description passed to the GPU compiler, which itself is 4 GB that the tests do without."""

import re

import pytest

from flaxformer_lite.analysis import hlo
from flaxformer_lite.plan import aot, gpu, topology


@pytest.mark.parametrize(
    "name", sorted(name for name, chip in topology.CHIPS.items() if chip.maker == "gpu")
)
def test_a_gpu_is_described_by_its_data_sheet(name):
    chip = topology.CHIPS[name]
    text = gpu.target(chip)
    said = {
        key: float(value) for key, value in re.findall(r"^  (\w+): ([\d.]+)$", text, re.MULTILINE)
    }
    assert said["memory_bandwidth"] == chip.bandwidth
    assert 0.97 < chip.memory / said["device_memory_size"] < 1  # the driver's part is left to it
    # Four tensor cores in a multiprocessor: on Hopper 512 bfloat16 multiply-adds a cycle each at
    # 1.83 GHz, on Ampere 256.
    each, clock = (256, 1.41e9) if name == "a100" else (512, 1.83e9)
    assert said["core_count"] * 4 * each * 2 * clock == pytest.approx(chip.peak, rel=0.01)
    assert text.count("{") == text.count("}") and 'platform_name: "CUDA"' in text


def test_without_the_plugin_a_plan_says_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu, "_plugin", lambda: "")
    assert "pip install 'flaxformer_lite[cuda]'" in aot.missing(topology.parse("h100:8"))
    monkeypatch.setattr(gpu, "_plugin", lambda: "numpy")
    assert re.search(r"numpy [\d.]+ does not match jax", aot.missing(topology.parse("h100:8")))


def test_memory_where_the_compiler_names_no_peak():
    class Sizes:
        peak_memory_in_bytes = 0
        argument_size_in_bytes = 100
        output_size_in_bytes = 90
        temp_size_in_bytes = 40
        alias_size_in_bytes = 80

    assert aot._peak(Sizes) == 150  # 100 that come in, 10 that go out beside them, 40 between
    Sizes.peak_memory_in_bytes = 120
    assert aot._peak(Sizes) == 120


def test_collectives_of_a_gpu_program():
    """Asynchronous ones, as XLA writes them for GPUs: the start's results have its operands before
    them."""
    module = hlo.parse("""HloModule step

ENTRY %main (a: bf16[64,128], b: f32[512]) -> bf16[512,128] {
  %a = bf16[64,128]{1,0} parameter(0)
  %b = f32[512]{0} parameter(1)
  %gather-start = (bf16[64,128]{1,0}, bf16[512,128]{1,0}) \
all-gather-start(%a), channel_id=1, replica_groups={}, dimensions={0}
  %gather-done = bf16[512,128]{1,0} all-gather-done(%gather-start)
  ROOT %reduce-start = f32[512]{0} all-reduce-start(%b), channel_id=2, \
replica_groups=[1,8]<=[8], to_apply=%add
}
""")
    assert [(one.kind, one.bytes) for one in hlo.collectives(module)] == [
        ("all-gather", 512 * 128 * 2),
        ("all-reduce", 2048),
    ]
