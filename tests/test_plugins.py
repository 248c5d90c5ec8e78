"""Plug-ins from anywhere: `module:Class` builds, trains, survives a resume, and is refused in a
sentence where it cannot be."""

import importlib
import re
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
    OptimizerConfig,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.training import optimizer
from tests.examples import trials
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
FLAGS = trials.SMALL | {"train.steps": 2, "train.log_every": 2, "model.decoder_layers": 1}


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


PARTS = {"objective.name": "own_parts:Warm", "model.position.name": "own_parts:Slope"}


def test_an_objective_and_an_encoding_of_a_users_train_and_resume(text, tmp_path, capsys):
    own = FLAGS | PARTS | {"data.path": text, "data.cache": text.parent / "cache"}
    own["objective.temperature"] = 0.25
    cfg = build(**own)
    assert (cfg.objective.temperature, cfg.objective.documents) == (0.25, "apart")
    assert cfg.model.position.by == 0.5
    flaxformer_lite.run(cfg, tmp_path / "run")
    assert "--allow-plugins --prompt" in capsys.readouterr().out  # of what to try next
    stored = workdir.read_config(tmp_path / "run", allow_plugins=True)
    assert stored.objective == cfg.objective
    again = build(**own | {"train.log_every": 1, "train.checkpoint_every": 3})
    flaxformer_lite.run(again, tmp_path / "run")
    assert "step 2 is done" in capsys.readouterr().out


def test_names_survive_the_round_trip():
    others = {"model.family": "own_parts:Mine", "model.attention": "own_parts:attend"}
    cfg = build(**PARTS, **others)
    assert plugin_name(cfg.objective) == "own_parts:Warm"
    assert plugin_name(cfg.model.position) == "own_parts:Slope"
    again = from_config_dict(ExperimentConfig, to_config_dict(cfg))
    assert again == cfg and hash(again) == hash(cfg)
    assert plugin_name(CausalLm()) == "causal_lm"
    assert registry.name_of(Path) == f"{Path.__module__}:Path"
    assert registry.resolve("models", "own_parts:Mine").Model.__name__ == "Mine"
    assert registry.resolve("attentions", "own_parts:attend").attend.__module__ == "own_parts"


def test_another_plugin_than_the_pages_brings_its_own_options():
    fields = {"objective.name": "prefix_lm", "objective.z_loss": 1e-4}
    values = page(**fields, **{"model.position.name": "rope"})
    due = {"name": "prefix_lm", "z_loss": 1e-4, "label_smoothing": 0.0}
    assert values.objective.to_dict() == due
    assert "base" in values.model.position and from_config_dict(ExperimentConfig, values)
    assert page(**{"objective.documents": "joined"}).objective.documents == "joined"


def test_a_page_may_name_it_and_some_of_its_options():
    values = to_config_dict(build(**{"objective.name": "own_parts:Warm"})).to_dict()
    values["objective"] = {"name": "own_parts:Warm", "temperature": 3.0}
    assert from_config_dict(ExperimentConfig, values).objective.temperature == 3.0
    values["objective"]["heat"] = 3.0
    message = r"config.objective.heat: no such field.*Warm has .*temperature"
    with pytest.raises(ConfigError, match=message):
        from_config_dict(ExperimentConfig, values)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_part:Warm", "config.objective.name: 'own_part:Warm': no module 'own_part' in the"),
        ("own_parts:Worm", "own_parts has no 'Worm'; did you mean 'Warm'?"),
        ("own_parts:Slope", "'own_parts:Slope' is not derived from flaxformer_lite.objectives"),
        ("own_parts:attend", "'own_parts:attend' is not derived from"),
        ("own_parts:Plain", "'own_parts:Plain' is not a dataclass; write @dataclass(frozen=True"),
        ("own_parts:Half", "'own_parts:Half' lacks loss, make_example."),
        ("own_parts:", "name a plug-in outside the package as package.module:Name"),
        ("base", "objectives: no 'base'; choose from causal_lm, cbow, classification, "),
    ],
)
def test_what_is_no_plugin_is_refused_by_the_flags_and_at_the_door(name, message, capsys):
    with pytest.raises(SystemExit):
        page(**{"objective.name": name})
    assert message in capsys.readouterr().err
    values = page().unlock()
    values.objective.name = name
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_config_dict(ExperimentConfig, values)


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("family", "own_parts:Nine", "own_parts has no .*; did you mean"),
        ("attention", "own_parts:attent", "own_parts has no .*; did you mean"),
        ("position.name", "own_parts:Warm", "is not derived from"),
        ("family", "own_parts:Warm", "is not derived from .*FamilyModel"),
        ("attention", "json:loads", "does not take 4 arguments by position, as the `attend`"),
    ],
)
def test_what_is_no_part_of_a_model(field, name, message, capsys):
    with pytest.raises((ConfigError, SystemExit)) as ended:
        build(**{f"model.{field}": name})
    said = f"{ended.value}{capsys.readouterr().err}"
    assert re.search(rf"model.{field}.*'{name}'.*{message}", said)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json:loads", "optimizer.name='json:loads': raised TypeError: the JSON object must"),
        ("builtins:repr", "optimizer.name='builtins:repr': returned a str; must return an optax"),
    ],
)
def test_what_makes_no_optimizer(name, message):
    with pytest.raises(ConfigError, match=message):
        optimizer.build(OptimizerConfig(name=name), 1)
