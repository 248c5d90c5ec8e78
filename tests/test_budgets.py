"""Budgets of a run, checked without a clock: FLOPs and operations of a step, its largest array,
compilations, imports.

`python -m tests.test_budgets` writes the table of steps anew; its diff tells what became dearer.
"""

import collections
import dataclasses
import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import ExperimentConfig, MeshConfig, from_config_dict
from flaxformer_lite.data import dummy
from flaxformer_lite.training import program
from tests.jaxprs import equations
from tests.marks import daily
from tests.training import tiny_runs

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).parent / "budgets.txt"
CONFIGS = ("bert_tiny", "demo", "gpt2_tiny", "llama_tiny", "t5_tiny")
COUNTED = ("dot_general", "gather", "scatter-add", "sort", "scan", "while")
HEAVY = {"flax", "grain", "jax", "jaxlib", "matplotlib", "numpy", "optax", "orbax", "rich"}
HEAVY |= {"sentencepiece", "tensorboardX", "tensorstore", "tokenizers"}


def build(cfg: ExperimentConfig) -> program.Program:
    cfg = program.with_vocabulary(cfg, dummy.vocab_size(cfg))
    return program.build(cfg, sharding.build_mesh(MeshConfig(data=1)), dummy.example(cfg))


def row(name: str) -> str:
    """One line: the step's matrix FLOPs, those that the model asks for, and how many operations of
    each kind it traces to."""
    page = importlib.import_module(f"configs.{name}").get_config()
    built = build(from_config_dict(ExperimentConfig, page))
    jaxpr = jax.make_jaxpr(built.train_step)(built.target, built.batch).jaxpr
    found = collections.Counter(equation.primitive.name for equation in equations(jaxpr))
    counts = "  ".join(f"{kind} {found[kind]}" for kind in COUNTED)
    flops = f"{program.executed_flops(built):,} FLOPs, {built.flops_per_step:,} of the model "
    return f"{name}: {flops} {counts}\n"


@pytest.mark.parametrize("name", daily(CONFIGS, ("gpt2_tiny",)))
def test_a_step_does_no_more_than_it_did(name):
    rows = TABLE.read_text().splitlines(keepends=True)
    assert row(name) in rows, "run `python -m tests.test_budgets` and read the diff"


@pytest.fixture(scope="module")
def long_step(tmp_path_factory):
    """A step of long rows, compiled: what is length x length would be its largest array by far."""
    train = {"batch_size": 4, "loss_chunks": 4}
    cfg = tiny_runs.config(tmp_path_factory.mktemp("text"), train=train)
    model = dataclasses.replace(cfg.model, max_length=1024, vocab_size=1024, dropout=0.0)
    data = dataclasses.replace(cfg.data, length=1024)
    built = build(dataclasses.replace(cfg, model=model, data=data))
    return built, built.train_step.lower(built.target, built.batch).compile()


def test_no_array_is_length_by_length_or_batch_by_length_by_vocabulary(long_step):
    """And what a step holds at once is a few chunks of logits."""
    built, compiled = long_step
    shapes = set(re.findall(r"\b(?:f32|s32|u32|pred)\[([\d,]+)\]", compiled.as_text()))
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    cfg = built.cfg
    tokens = cfg.train.batch_size * cfg.data.length
    chunk = tokens * cfg.model.vocab_size // cfg.train.loss_chunks
    # and not 4 x 2 x 1024 x 1024 of attention, or 4 x 1024 x 1024 of logits
    assert largest == chunk
    assert compiled.memory_analysis().temp_size_in_bytes < 5 * 4 * chunk


@pytest.mark.parametrize(
    "command", [["-c", "import flaxformer_lite"], ["train.py", "--help"]], ids=["import", "help"]
)
def test_nothing_heavy_is_loaded_before_it_is_needed(command):
    command = [sys.executable, "-X", "importtime", *command]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert out.stdout or "-c" in command, out.stderr
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in out.stderr.splitlines()}
    assert not loaded & HEAVY


if __name__ == "__main__":
    TABLE.write_text("".join(map(row, CONFIGS)))
