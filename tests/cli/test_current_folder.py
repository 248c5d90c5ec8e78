"""A stranger's folder as the current one: its files stand in for no module that a library looks
for, in any command, while a page and plug-ins that a person names are found there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands import COMMANDS
from tests.cli import models
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

ROOT = Path(__file__).parents[2]
FIELDS = (
    "data.path=../text.jsonl data.cache=../cache data.tokenizer.name=bytes data.length=32"
    " train.steps=1 train.batch_size=8 train.eval_batches=1 model.d_model=16 model.num_heads=2"
    " model.mlp_dim=32 model.decoder_layers=1 model.vocab_size=0"
)
CONFIG = ("--config=gpt2_tiny", *(f"--config.{field}" for field in FIELDS.split(" ")))
LINES = {  # in the order of a group, in which the first imports the most
    "train": [*CONFIG, "--workdir=../new"],
    "data": ["stats", *CONFIG],
    "plan": [*CONFIG, "--topology=v5e:1x1", "--analytic"],
    "verify": ["--checks=mesh", *CONFIG, "--config.mesh.data=1"],
    "generate": ["--model=../gpt2", "--prompt=one", "--max_new_tokens=1", "--allow-plugins"],
    "evaluate": ["--model=../run", "--data=../text.jsonl"],
    "predict": ["--model=../bert", "--data=../table.csv", "--output=../predicted.csv"],
    "convert": ["../run", "../converted"],
    "export": ["--model=../bert", "--output=../exported/model.stablehlo"],
    "lm-eval": ["--model=../gpt2", "--tasks=lambada_openai"],
    "inspect": ["../gpt2"],
    "embed": ["--model=../bert", "--text=one", "--text=two"],
    "mine": ["--model=../bert", "--data=../pairs.jsonl", "--output=../mined.jsonl"],
    "similar": ["--model=../gpt2", "--word=one"],
    "look": ["--model=../gpt2", "--text=one two", "--output=../page.html"],
    "compare": ["../run", "--output=../compare.html"],
    "steps": ["--workdir=../run", "--at=1"],
}
ENDS = {"lm-eval": 2}  # without the harness, which is an extra
PROBED = {"jax_plugins", "libtpu", "orbax", "google"}  # among others


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A run, models and tables, beside an empty folder."""
    room = tmp_path_factory.mktemp("room")
    flaxformer_lite.run(tiny_runs.config(room, train={"steps": 1}), room / "run")
    models.directory(room / "gpt2")
    models.directory(room / "bert", "bert", "sequence_classification")
    models.directory(room / "bert_lm", "bert", "masked_lm")
    (room / "table.csv").write_text("text,label\none two,0\n")
    (room / "pairs.jsonl").write_text('{"query": "one", "answer": "two"}\n' * 9)
    (room / "here").mkdir()
    return room


def run_here(room, commands):
    """Runs commands in one process, which plants in `room/here` what they look for in vain."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "tests.cli.planting", str(room / "ran")],
        input=json.dumps({name: [name, *LINES[name]] for name in commands}),
        cwd=room / "here",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "commands",
    [
        ["train", "embed"],
        *(pytest.param([name], id=name, marks=pytest.mark.nightly) for name in LINES),
    ],
)
def test_no_command_imports_what_a_library_looks_for(commands, room):
    done = run_here(room, commands)
    ran = room / "ran"
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert not any(seen["exposed"].values()), seen["exposed"]
    assert seen["codes"] == {name: ENDS.get(name, 0) for name in commands}, done.stderr[-3000:]
    if len(commands) > 1:
        assert set(seen["names"]) >= PROBED


def test_every_command_is_here():
    assert set(LINES) == set(COMMANDS)


FILES = {
    "near_parts": """
import dataclasses
import near_base

@dataclasses.dataclass(frozen=True, kw_only=True)
class Warm(near_base.Base):
    pass
""",
    "near_base": "from flaxformer_lite.objectives.text.causal_lm import CausalLm as Base",
    "near_page": """
from flaxformer_lite import pages
config = lambda: pages.get_config('gpt2_tiny')
""",
    "mine": "import near_page\nget_config = near_page.config",
    "stranger": "",
}


def test_a_page_and_the_plugins_that_a_person_names_are_found_with_their_neighbors(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name, text in FILES.items():
        Path(f"{name}.py").write_text(text)
    values = command_line.config(["--config=mine.py", "--config.objective.name=near_parts:Warm"])
    assert values.objective.name == "near_parts:Warm"
    assert str(tmp_path) not in sys.path
    for name in ("stranger", "other"):
        assert importlib.util.find_spec(name) is None
    for name in ("near_parts", "near_base", "near_page"):
        del sys.modules[name]
