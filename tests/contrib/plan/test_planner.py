"""Plans without a compiler, of real configs; and what a compiled one says, on the program of a
shrunken run."""

import dataclasses
import json

import jax
import pytest

from flaxformer_lite import pages, sharding
from flaxformer_lite.analysis import hlo
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    MeshConfig,
    TrainConfig,
    from_config_dict,
)
from flaxformer_lite.contrib.plan import aot, lints, memory, planner, report, topology
from flaxformer_lite.contrib.plan.topology import GIB_BYTES
from flaxformer_lite.data import dummy
from flaxformer_lite.training import program
from tests.training import tiny_runs

SCALE = {
    "gpt2_xl": "v5e:16x16",
    "t5_xl": "v5e:16x16",
    "t5_xxl": "v5p-128",
    "llama_7b": "v5e:16x16",
    "llama3_8b": "v6e:16x16",
    "llama3_70b": "v6e:16x16",
    "llama_70b": "v5p-512",
}


def config(name):
    return from_config_dict(ExperimentConfig, pages.get_config(name))


@pytest.fixture(scope="module")
def seven():
    return planner.make(config("llama_7b"), topology.parse("v5e:16x16"), compiler=False)


def test_sizes_of_a_7b_follow_from_its_shardings(seven):
    assert seven.fits and seven.mesh == {"data": 16, "fsdp": 16}
    whole = 4 * 6738415616 / 256  # over fsdp and data
    small = 4 * (2 * 32 + 1) * 4096  # norms are not split
    assert seven.memory.parameters == pytest.approx(whole + small * 255 / 256, rel=1e-6)
    assert seven.memory.optimizer == pytest.approx(2 * seven.memory.parameters, rel=1e-6)
    assert seven.memory.gradients == seven.memory.parameters
    # 6 N + 12 L D T a token, the embedding's rows being looked up and not multiplied.
    wanted = seven.tokens * (6 * (6738415616 - 32000 * 4096) + 12 * 32 * 4096 * 2048)
    assert seven.model_flops == pytest.approx(wanted, rel=0.01)
    assert 1.2 < seven.executed_flops / seven.model_flops < 1.34
    assert "analytic (asked for)" in seven.how and seven.compile_seconds is None


def test_activations_grow_with_the_rows_and_shrink_with_remat(seven):
    cfg = config("llama_7b")
    half = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, accumulate=2))
    less = planner.make(half, topology.parse("v5e:16x16"), compiler=False)
    stream = 4 * 2048 * 4096 * 2 * 32  # of four rows, in bfloat16, after every layer
    assert seven.memory.activations - less.memory.activations >= stream
    kept = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, remat="none"))
    assert not planner.make(kept, topology.parse("v5e:16x16"), compiler=False).fits


@pytest.mark.parametrize("name", SCALE)
def test_every_config_of_scale_has_a_mesh_for_its_machine(name):
    machine = topology.parse(SCALE[name])
    held = memory.held(planner.build(config(name), machine, described=True))
    assert sum(held) < machine.chip.memory


def test_gpus_are_planned_by_their_memory():
    cfg = dataclasses.replace(config("gpt2_xl"), mesh=MeshConfig(data=-1, fsdp=8))
    plan = planner.make(cfg, topology.parse("h100:16"))
    assert "XLA's compiler for GPUs estimates no times" in plan.how and plan.chips == 16
    text = dict(report.rows(plan))
    assert "fits: " in text["memory a chip"] and "step time" not in text


def test_what_cannot_be_divided_is_said():
    cfg = dataclasses.replace(config("gpt2_xl"), mesh=MeshConfig(data=-1, fsdp=24))
    with pytest.raises(ConfigError, match=r"mesh.fsdp=24.*256.*not divide.*24"):
        planner.make(cfg, topology.parse("v5e:16x16"), compiler=False)
    cfg = dataclasses.replace(config("gpt2_xl"), train=TrainConfig(batch_size=100))
    with pytest.raises(ConfigError, match=r"train.batch_size=100: .* try train.batch_size=256"):
        planner.make(cfg, topology.parse("v5e:16x16"), compiler=False)


def test_json_and_words_say_the_same(seven):
    loaded = json.loads(json.dumps(seven.json()))
    assert loaded["fits"] and loaded["memory"]["parameters"] == seven.memory.parameters
    due = f"fits: {seven.memory.total / GIB_BYTES:.2f} of 15.75 GiB at the peak"
    assert dict(report.rows(seven))["memory a chip"].startswith(due)
    full = dataclasses.replace(seven, fits=False, available=2 * GIB_BYTES)
    assert report.verdict(full).startswith("DOES NOT FIT: ") and "too much" in report.verdict(full)


def test_a_time_without_the_kernels_is_a_bound_that_names_them(seven):
    times = {"seconds": (1.0, 2.0), "scheduled": 1.5, "utilisation": (0.2, 0.4)}
    whole = dict(report.rows(dataclasses.replace(seven, **times)))
    assert whole["step time"].startswith("1.00 s to 2.00 s") and "note" not in whole
    rows = dict(report.rows(dataclasses.replace(seven, **times, untimed=("splash_mha_fwd",))))
    assert rows["step time"].startswith("at least 1.00 s to 2.00 s")
    assert rows["utilisation"].startswith("at most 20% to 40%")
    assert rows["as scheduled"].startswith("at least 1.50 s, at most 27% of the peak")
    assert rows["note"] == "hand-written kernels are not timed: splash_mha_fwd"


@pytest.mark.parametrize(
    ("words", "bytes_"),
    [
        ("Ran out of memory in memory space hbm. Used 57.97G of 15.75G hbm. Exceeded hbm", 57.97),
        ("memory required for HLO temporaries (42.41G) exceeds available HBM (15.75G).", 42.41 + 3),
        ("no numbers here", None),
    ],
)
def test_the_compilers_words_for_too_much(words, bytes_):
    needed = aot.needed(words, 3 * GIB_BYTES)
    assert needed == (bytes_ and pytest.approx(bytes_ * GIB_BYTES, abs=1))


@pytest.fixture
def compiled(tmp_path):
    """A run's step compiled for eight devices of this machine, as `aot` hands it on."""

    def of(attention="auto", chunks=4, **mesh):
        train = {"batch_size": 16, "loss_chunks": chunks}
        cfg = tiny_runs.config(tmp_path, train=train, mesh=MeshConfig(**mesh))
        sizes = {"max_length": 512, "vocab_size": 4096, "num_heads": 4}
        model = dataclasses.replace(cfg.model, attention=attention, **sizes)
        cfg = dataclasses.replace(cfg, model=model, data=dataclasses.replace(cfg.data, length=512))

        built = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
        traced = built.train_step.trace(built.target, built.batch)
        constraints = str(traced.jaxpr).count("sharding_constraint")
        done = aot.Compiled(1.0, 1, "", traced.lower().compile().as_text(), constraints, 0)
        return built, done, hlo.parse(done.text)

    return of


@pytest.mark.nightly
def test_findings_name_what_is_wrong_and_are_silent_where_nothing_is(compiled):
    program, done, module = compiled("dense", chunks=1, data=2, fsdp=4)
    found = " ".join(lints.warnings(program, done, module))
    assert "arrays of all pairs of positions" in found and "logits of all tokens" in found
    unbound = dataclasses.replace(done, constraints=0, rematerialised=2)
    found = " ".join(lints.warnings(program, unbound, module))
    assert "no sharding constraints" in found and "involuntary rematerialization: 2 arrays" in found
    program, done, module = compiled("blockwise", data=2, fsdp=4)
    found = " ".join(lints.warnings(program, done, module))
    assert "pairs" not in found and "logits" not in found


@pytest.mark.parametrize(("shape", "count"), [("1,8192,128256", 1), ("128256,8192", 0)])
def test_a_table_as_wide_as_a_row_is_long_is_not_taken_for_logits(shape, count):
    program = planner.build(config("llama3_70b"), topology.parse("v6e:16x16"), described=True)
    entry = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  %big = f32[{shape}] fusion(%p)\n}}"
    module = hlo.parse(f"HloModule m\n\n{entry}\n")
    assert len(list(lints._logits(program, module))) == count


def test_a_peak_below_what_is_held_is_no_negative_activation(tmp_path):
    program = planner.build(config("gpt2_xl"), topology.parse("v5e:16x16"), described=True)
    held = sum(memory.held(program))
    assert memory.compiled(program, held - 1).activations == 0
    assert memory.compiled(program, held + 7).activations == 7
    assert jax.tree.leaves(program.target)[0].sharding is not None
