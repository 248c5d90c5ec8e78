"""Plug-ins from anywhere: `module:Class` builds, trains, survives a resume, and is refused in a
sentence where it cannot be."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli import command_line, current_folder
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

ROOT = Path(__file__).parents[1]
MODULE = '''
from dataclasses import dataclass
import jax.numpy as jnp
from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives import LossSums, Objective
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.nn.positions.encoding import Encoding

@dataclass(frozen=True, kw_only=True)
class Warm(CausalLm):
    """Next tokens, their loss times a factor."""
    temperature: float = 1.0

    def loss(self, outputs, targets, *, chunks):
        sums = super().loss(outputs, targets, chunks=chunks)
        loss = {k: self.temperature * x for k, x in sums.loss.items()}
        return LossSums(loss, sums.weight, sums.metrics)

@dataclass(frozen=True, kw_only=True)
class Slope(Encoding):
    """A penalty for distance, the same in every head."""
    by: float = 0.5

    def bias(self, tables, q_BTNH, q_positions_BT, k_positions_BS, *, bidirectional):
        ahead_BTS = (k_positions_BS[:, None] - q_positions_BT[:, :, None]).astype(jnp.float32)
        return -self.by * jnp.abs(ahead_BTS)[:, None] * jnp.ones((1, q_BTNH.shape[2], 1, 1))

class Mine(gpt2.Model):
    pass

def attend(*arrays, **options):
    return dense.attend(*arrays, **options)

class Plain(CausalLm):
    pass

@dataclass(frozen=True, kw_only=True)
class Half(Objective):
    pass
'''
FLAGS = {
    "train.steps": 2,
    "train.batch_size": 4,
    "train.eval_batches": 1,
    "mesh.data": 1,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.mlp_dim": 32,
    "model.decoder_layers": 1,
    "model.vocab_size": 0,
    "data.tokenizer.name": "bytes",
    "data.length": 32,
    "data.eval_fraction": 0.1,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny_runs.text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A module in the current folder, which is not on Python's path yet."""
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("own_parts", None)


def page(**changes):
    current_folder.import_from_here()  # as every command does first
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    return command_line.config([f"--config={ROOT}/configs/gpt2_tiny.py", *flags])


def build(**changes):
    return from_config_dict(ExperimentConfig, page(**changes))


def test_an_objective_and_an_encoding_of_a_users_train_and_resume(text, tmp_path, capsys):
    own = FLAGS | {
        "data.path": text,
        "data.cache": text.parent / "cache",
        "objective.name": "own_parts:Warm",
        "objective.temperature": 0.25,
        "model.position.name": "own_parts:Slope",
    }
    cfg = build(**own)
    assert (cfg.objective.temperature, cfg.objective.documents, cfg.model.position.by) == (
        0.25,
        "apart",
        0.5,
    )
    flaxformer_lite.run(cfg, tmp_path / "run")
    assert "--allow-plugins --prompt" in capsys.readouterr().out  # of what to try next
    stored = workdir.read_config(tmp_path / "run", allow_plugins=True)
    assert stored.objective == cfg.objective
    flaxformer_lite.run(
        build(**own, **{"train.log_every": 1, "train.checkpoint_every": 3}), tmp_path / "run"
    )
    assert "step 2 is done" in capsys.readouterr().out


def test_names_survive_the_round_trip():
    cfg = build(
        **{
            "objective.name": "own_parts:Warm",
            "model.position.name": "own_parts:Slope",
            "model.family": "own_parts:Mine",
            "model.attention": "own_parts:attend",
        }
    )
    assert (
        plugin_name(cfg.objective) == "own_parts:Warm"
        and plugin_name(cfg.model.position) == "own_parts:Slope"
    )
    assert from_config_dict(ExperimentConfig, to_config_dict(cfg)) == cfg
    assert hash(cfg) == hash(from_config_dict(ExperimentConfig, to_config_dict(cfg)))
    assert (
        plugin_name(CausalLm()) == "causal_lm"
        and registry.name_of(Path) == f"{Path.__module__}:Path"
    )


def test_a_family_and_an_attention_are_what_stands_behind_the_colon():
    current_folder.import_from_here()
    assert registry.resolve("models", "own_parts:Mine").Model.__name__ == "Mine"
    assert registry.resolve("attentions", "own_parts:attend").attend.__module__ == "own_parts"


def test_another_plugin_than_the_pages_brings_its_own_options():
    values = page(
        **{"objective.name": "prefix_lm", "objective.z_loss": 1e-4, "model.position.name": "rope"}
    )
    assert values.objective.to_dict() == {
        "name": "prefix_lm",
        "z_loss": 1e-4,
        "label_smoothing": 0.0,
    }
    assert "base" in values.model.position and from_config_dict(ExperimentConfig, values)
    assert page(**{"objective.documents": "joined"}).objective.documents == "joined"


def test_a_page_may_name_it_and_some_of_its_options():
    values = to_config_dict(build(**{"objective.name": "own_parts:Warm"})).to_dict()
    values["objective"] = {"name": "own_parts:Warm", "temperature": 3.0}
    assert from_config_dict(ExperimentConfig, values).objective.temperature == 3.0
    values["objective"]["heat"] = 3.0
    with pytest.raises(
        ConfigError, match=r"config.objective.heat: no such field.*Warm has .*temperature"
    ):
        from_config_dict(ExperimentConfig, values)


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        (
            "objective.name",
            "own_part:Warm",
            "config.objective.name: 'own_part:Warm': no module 'own_part' in the current",
        ),
        ("objective.name", "own_parts:Worm", "own_parts has no 'Worm'; did you mean 'Warm'?"),
        (
            "objective.name",
            "own_parts:Slope",
            "'own_parts:Slope' is not derived from flaxformer_lite.objectives.base.Obj",
        ),
        ("objective.name", "own_parts:attend", "'own_parts:attend' is not derived from"),
        (
            "objective.name",
            "own_parts:Plain",
            "'own_parts:Plain' is not a dataclass; write @dataclass(frozen=True",
        ),
        ("objective.name", "own_parts:Half", "'own_parts:Half' lacks loss, make_example."),
        (
            "objective.name",
            "own_parts:",
            "name a plug-in outside the package as package.module:Name",
        ),
        (
            "objective.name",
            "base",
            "objectives: no 'base'; choose from causal_lm, cbow, classification, ",
        ),
        (
            "model.position.name",
            "own_parts:Warm",
            "config.model.position.name: 'own_parts:Warm' is not derived from",
        ),
    ],
)
def test_what_is_no_plugin_is_refused_by_the_flags_and_at_the_door(field, name, message, capsys):
    with pytest.raises(SystemExit):
        page(**{field: name})
    assert message in capsys.readouterr().err
    values = page().unlock()
    values.update_from_flattened_dict({field: name})
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_config_dict(ExperimentConfig, values)


@pytest.mark.parametrize(
    ("field", "name"), [("family", "own_parts:Nine"), ("attention", "own_parts:attent")]
)
def test_no_such_family_or_attention(field, name):
    with pytest.raises(
        ConfigError, match=rf"^model.{field}='{name}': '{name}': own_parts has no .*; did you mean"
    ):
        build(**{f"model.{field}": name})


@pytest.mark.nightly
def test_train_py_finds_a_module_beside_which_it_is_called():
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        f"--config={ROOT}/configs/gpt2_tiny.py",
        "--workdir=run",
    ]
    done = subprocess.run(
        [*command, "--config.objective.name=own_parts:Worm"], capture_output=True, text=True
    )
    assert (
        done.returncode == command_line.BAD_INPUT
        and "own_parts has no 'Worm'; did you mean 'Warm'?" in done.stderr
    ), done.stderr
