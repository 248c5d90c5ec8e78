"""Schedules of kernels, read from text such as the TPU compiler writes."""

import json
import subprocess
from pathlib import Path

import pytest

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan import compile_kernels, kernel_schedule, kernels
from flaxformer_lite.contrib.plan.topology import CHIPS

FLOPS_PER_CYCLE = 2 * 128 * 128


def kernel_text(*, products: int, split: bool = False) -> dict[str, str]:
    """Writes a kernel of 100 bundles: a loop from 10 to 95 with a span at each end that runs at
    times, and `products` spans of 10 bundles with products that keep one of two units busy."""
    branches = {20: 1, 90: 0}  # address -> region that it goes to
    starts = {10: 0, 30: 1}
    busy = [0] * 100
    for number in range(products):
        first = 35 + 15 * number
        branches[first - 5] = 10 + number
        starts[first + 10] = 10 + number
        busy[first : first + 10] = [1] * 10
    lines = []
    for address in range(100):
        mark = ""
        if address in starts:
            mark = f" /* Start region {starts[address]} :: Start region {50 + address} */"
        branch = ""
        if address in branches:
            branch = f"%7 = sbr.rel (!%p3) target = $region{branches[address]}"
        core = " /* core id */" if split and not address else ""
        hexadecimal = hex(address) if address else "0"
        lines.append(f"{hexadecimal:>6} LB: > {{ {branch} }}{mark}{core}")
    units = ["== CAPACITY:", "MXU, XLU", "    2     3", "== UTILIZATION:"]
    units += [f"{count} 0" for count in busy]
    source = "iteration_bounds = array<i64: 3, -9223372036854775808, 4>\n"
    for _ in range(products):
        source += (
            "%1 = tpu.matmul %a, %b, %c {x = #tpu<[1], [0]>} : vector<128x128xbf16>,"
            " vector<128x64xbf16>, vector<128x64xf32> -> vector<128x64xf32>\n"
        )
    return {"bundles": "\n".join(lines), "units": "\n".join(units), "source": source}


def read(*, products, cores=1, split=False, **changes):
    texts = kernel_text(products=products, split=split) | changes
    return kernel_schedule.read(**texts, cores=cores, peak=FLOPS_PER_CYCLE)


# 85 bundles of the loop less spans of 10, in one of which a product takes 64 cycles at the peak and
# keeps half of the units busy for 10; five bundles after a branch run in any case.
@pytest.mark.parametrize(
    ("products", "always", "due"),
    [(1, 85 - 5 - 10, 10 + (64 - 5)), (3, 85 - 5 - 30, 10 + (64 - 5)), (0, 80, 0)],
)
def test_cycles_are_bundles_or_what_products_take_at_the_peak(products, always, due):
    schedule = read(products=products, cores=2)
    assert (schedule.always, schedule.products) == (always, due)
    assert (schedule.ends, schedule.grid[0], schedule.cores) == (5, 3, 1)


def test_forms_of_a_step_count_as_often_as_the_kernel_says():
    texts = kernel_text(products=2)
    units = texts["units"].splitlines()
    # The second form keeps no unit busy for six of its ten bundles, the first for none.
    for address in range(50, 56):
        units[4 + address] = "0 0"
    first = 10 + 128 * 5 / 7 - 5
    second = 10 + 128 * 2 / 7 - 2
    half = (first + second) / 2  # where forms are not known, or of another kernel
    for forms, due in {(1, 3): (first + 3 * second) / 4, (): half, (1, 2, 3): half}.items():
        texts = {**texts, "units": "\n".join(units)}
        found = kernel_schedule.read(**texts, cores=1, peak=FLOPS_PER_CYCLE, forms=forms)
        assert found.products == pytest.approx(due)


def test_cores_share_the_grid_of_a_kernel_that_reads_its_core():
    split = read(products=1, split=True, cores=2)
    assert split.cores == 2
    # 24 steps, half of which multiply, in 6 rows
    assert split.cycles((3, 2, 4), 0.5) == (24 * (70 + 0.5 * 69) + 6 * 5) / 2


def test_a_kernel_without_a_grid_takes_all_its_bundles():
    texts = {
        "bundles": "     0   :  { %1 = sfence }\n   0x1   :  { %2 = sfence }",
        "units": "== CAPACITY:\nMXU, XLU\n  4   3\n== UTILIZATION:\n0 0\n0 1\n",
        "source": "module {}",
    }
    assert read(products=0, cores=2, **texts).cycles((1,), 1.0) == 2


def kernel(*shapes, config="{}"):
    arrays = tuple(hlo.Array("bf16", shape) for shape in shapes)
    return kernels.Kernel(arrays, (), config)


def test_blocks_below_the_diagonal_multiply():
    # Of 4 x 4 blocks of one head 10 are on or below the diagonal, of 4 x 2 blocks 6.
    heads = kernel((2, 8, 512, 64), (2, 8, 512, 64))
    assert kernels.causal_share((2, 8, 4, 4), heads) == 10 / 16
    assert kernels.causal_share((2, 8, 4, 2), heads) == 6 / 8
    assert kernels.causal_share((2, 4, 8, 2), heads) == 6 / 8  # of keys' gradients
    assert kernels.causal_share((14, 79, 4), kernel((36_864, 4096), (8, 4096, 14_336))) == 1
    # A sliding window of 3 of 4 blocks, all of which are seen.
    assert kernels.causal_share((2, 8, 4, 3), heads) == 1
    assert kernels.causal_share((0, 8, 4, 4), kernel((0, 8, 512, 64), (0, 8, 512, 64))) == 1


def test_a_grid_that_depends_on_the_data_has_a_step_for_each_listed_block():
    listed = kernel((9,), (79,), (36_864, 4096))
    assert kernels.grid_of(read(products=1), listed) == (3, 79, 4)


CALL = """HloModule m

ENTRY %main (p: f32[8]) -> f32[8] {
  %gmm.1 = (bf16[64,8]{1,0}) custom-call(%a), custom_call_target="tpu_custom_call", \
operand_layout_constraints={s32[], s32[9]{0}, bf16[64,16]{1,0}}, frontend_attributes={x={}}, \
backend_config={"custom_call_config":{"body":"TUz{v"},"used_scoped_memory_configs":[]}, x={1}
  %gmm.2 = (bf16[64,8]{1,0}) custom-call(%a), custom_call_target="tpu_custom_call", \
operand_layout_constraints={s32[], s32[9]{0}, bf16[64,16]{1,0}}, \
backend_config={"custom_call_config":{"body":"TUz{v"},"used_scoped_memory_configs":[]}
  ROOT %other = bf16[64,8]{1,0} custom-call(%a), custom_call_target="tpu_custom_call", \
operand_layout_constraints={bf16[64,16]{1,0}}, backend_config={"custom_call_config":{"body":"U"}}
}
"""


def test_a_kernel_says_how_often_it_takes_each_form():
    said = 'frontend_attributes={kernel_metadata={\n"forms":"[2, 1]"\n}}'
    module = hlo.parse(CALL.replace("frontend_attributes={x={}}", said))
    calls = {op.name: op for op in module.computations[module.entry]}
    assert kernels.kernel_of(calls["gmm.1"]).forms == (2, 1)
    assert kernels.kernel_of(calls["gmm.2"]).forms == ()
    assert kernels.kernel_of(calls["gmm.1"]).config == kernels.kernel_of(calls["gmm.2"]).config


def test_equal_kernels_are_compiled_once_and_those_that_fail_have_no_time(monkeypatch):
    texts = kernel_text(products=1)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--mine")

    def compiler(command, *, input, env, **_):
        folder = Path(command[-1])
        given = json.loads(input)
        assert [each["operands"] for each in given] == [
            [["s32", []], ["s32", [9]], ["bf16", [64, 16]]],
            [["bf16", [64, 16]]],
        ]
        assert env["LIBTPU_INIT_ARGS"].startswith("--mine --xla_jf_dump_to=. ")
        (folder / "0.json").write_text(json.dumps(texts))

    monkeypatch.setattr(subprocess, "run", compiler)
    chip = CHIPS["v5e"]
    found = kernels.seconds(hlo.parse(CALL), chip, causal=True)
    schedule = kernel_schedule.read(**texts, cores=1, peak=chip.peak / chip.clock)
    expected = schedule.cycles((3, 9, 4), 1.0) / chip.clock
    assert found == {"gmm.1": pytest.approx(expected), "gmm.2": pytest.approx(expected)}


@pytest.fixture
def compiler(monkeypatch):
    """Stands for a compiler that writes these texts of a kernel."""
    texts = kernel_text(products=1)

    def run(command, **_):
        Path(command[-1], "0.json").write_text(json.dumps(texts))

    monkeypatch.setattr(subprocess, "run", run)
    return texts


def test_a_kernel_takes_no_less_than_moving_its_arrays(compiler):
    chip = CHIPS["v5e"]
    call = CALL[: CALL.index("  %gmm.2")].replace("bf16[64,16]", "bf16[65536,1024]") + "}\n"
    (seconds,) = kernels.seconds(hlo.parse(call), chip, causal=True).values()
    moved = 2 * 2**26 + 40 + 2 * 64 * 8
    assert seconds == pytest.approx(moved / (0.5 * chip.bandwidth), rel=1e-6)


def test_a_program_without_kernels_starts_no_compiler(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    assert kernels.seconds(hlo.parse("HloModule m\n"), CHIPS["h100"], causal=True) == {}


def test_dtypes_of_kernels_are_as_large_as_xla_says():
    for spelled in compile_kernels.DTYPES:
        if spelled != "s4":  # of which numpy has one in a byte
            described = compile_kernels.describe((spelled, [2]), None)
            assert hlo.Array(spelled, (2,)).bytes == 2 * described.dtype.itemsize


def test_a_compiler_that_fails_is_told_and_leaves_kernels_untimed(monkeypatch, caplog):
    monkeypatch.setitem(kernels.ENVIRONMENT, "JAX_PLATFORMS", "no such platform")
    untimed("kernels are not timed: ", caplog)


def untimed(message, caplog):
    with caplog.at_level("WARNING", "flaxformer_lite"):
        assert kernels.seconds(hlo.parse(CALL), CHIPS["v5e"], causal=True) == {}
    assert message in caplog.text


def test_a_text_of_another_form_is_told(compiler, caplog):
    compiler["units"] = "no table"
    untimed("a kernel is not timed", caplog)


def test_a_loop_inside_the_grid_is_refused():
    lines = kernel_text(products=1)["bundles"].splitlines()
    lines[60] = "  0x3c LB: > { %7 = sbr.rel (!%p3) target = $region80 }"
    lines[55] += " /* Start region 80 */"
    with pytest.raises(ValueError, match="loop of an unknown number"):
        read(products=1, bundles="\n".join(lines))
