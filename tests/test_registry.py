"""Plug-ins by file name, and the user's own by module and class."""

import sys
import types
from dataclasses import dataclass

import pytest

from flaxformer_lite import models, pages, registry
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict, to_config_dict
from flaxformer_lite.config.parts import FeedForwardConfig

MINE = """
from dataclasses import dataclass

from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.nn.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Slow(Rope):
    slowness: float = 2.0  # times as slow


@dataclass(frozen=True, kw_only=True)
class Mine(CausalLm):
    weight: float = 0.5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_test.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_test"


def test_a_class_outside_the_package_is_a_value_like_ours(mine):
    config = pages.get_config("gpt2_tiny").unlock()
    config.objective = {"name": f"{mine}:Mine", "weight": 0.25}
    config.model.position = {"name": f"{mine}:Slow", "slowness": 3}
    cfg = from_config_dict(ExperimentConfig, config)
    assert (type(cfg.objective).__name__, cfg.objective.weight, cfg.model.position.slowness) == (
        "Mine",
        0.25,
        3.0,
    )
    stored = to_config_dict(cfg)
    assert (
        stored.objective.name == f"{mine}:Mine"
        and from_config_dict(ExperimentConfig, stored) == cfg
    )


def test_ours_keep_their_file_names():
    cfg = from_config_dict(ExperimentConfig, pages.get_config("gpt2_tiny", "rope"))
    assert to_config_dict(cfg).model.position.name == "rope"
    assert registry.resolve_class("positions", "t5_buckets").__name__ == "T5Buckets"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nowhere_at_all:Mine",
            "config.objective.name: 'nowhere_at_all:Mine': no module 'nowhere_at_all'",
        ),
        ("mine_of_test:Yours", "'mine_of_test:Yours': mine_of_test has no 'Yours'"),
        ("causal", "objectives: no 'causal'; did you mean 'causal_lm'"),
    ],
)
def test_what_is_not_there_is_said(name, message, mine):
    config = pages.get_config("gpt2_tiny").unlock()
    config.objective = {"name": name}
    with pytest.raises(ConfigError, match=message):
        from_config_dict(ExperimentConfig, config)


def test_a_file_of_the_package_is_checked_like_a_class_outside(monkeypatch):
    """Files of the package, each with a fault."""

    @dataclass(frozen=True, kw_only=True)
    class TanhGatedConfig(FeedForwardConfig):
        def module(self, execution, *, name=None):
            return None

    @dataclass(frozen=True, kw_only=True)
    class Bare(FeedForwardConfig):
        pass

    class Undecorated(FeedForwardConfig):
        pass

    for file, inside, message in (
        (
            "tanh_gated",
            {"Tanhgated": TanhGatedConfig},
            "feed_forwards/tanh_gated.py holds neither TanhGatedConfig nor Tanh",
        ),
        (
            "tanh_gated",
            {"TanhGated": dict},
            "'tanh_gated' is not derived from flaxformer_lite.config.parts.FeedForwardConfig",
        ),
        ("tanh_gated", {"TanhGatedConfig": Undecorated}, "'tanh_gated' is not a dataclass"),
        ("tanh_gated", {"TanhGatedConfig": Bare}, "'tanh_gated' lacks module"),
    ):
        module = types.ModuleType(file)
        vars(module).update(inside)
        monkeypatch.setitem(sys.modules, f"flaxformer_lite.nn.feed_forwards.{file}", module)
        places = {file: f"flaxformer_lite.nn.feed_forwards.{file}"}
        monkeypatch.setattr(registry, "_modules", lambda folder, places=places: places)
        with pytest.raises(ValueError, match=message):
            registry.resolve_class("feed_forwards", file)
    vars(module).update(TanhGatedConfig=TanhGatedConfig)
    assert registry.resolve_class("feed_forwards", "tanh_gated") is TanhGatedConfig


@pytest.mark.parametrize("name", models.ROWS)
def test_a_family_that_is_a_row_of_a_table_holds_what_a_file_of_a_family_holds(name):
    row = registry.resolve("models", name)
    assert row is registry.resolve("models", name) and row.__name__ == name
    assert row.config().family == name and row.PUBLISHED.heads.keys() <= set(row.Model.heads)
    assert {*row.PRESETS} >= {"tiny"} and row.BASE["vocab_size"] == row.config().vocab_size
    assert models.ROWS[name] in models.SHARED or models.ROWS[name] in registry.available("models")
