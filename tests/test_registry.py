"""Plug-ins by file name, and the user's own by module and class."""

import sys
import types
from dataclasses import dataclass

import pytest

from flaxformer_lite import models, registry
from flaxformer_lite.config.parts import FeedForwardConfig


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

    place = "flaxformer_lite.nn.feed_forwards.tanh_gated"
    monkeypatch.setattr(registry, "_modules", lambda folder: {"tanh_gated": place})
    for name, inside, message in (
        ("Tanhgated", TanhGatedConfig, "tanh_gated.py holds neither TanhGatedConfig nor Tanh"),
        ("TanhGated", dict, "'tanh_gated' is not derived from .*.parts.FeedForwardConfig"),
        ("TanhGatedConfig", Undecorated, "'tanh_gated' is not a dataclass"),
        ("TanhGatedConfig", Bare, "'tanh_gated' lacks module"),
    ):
        module = types.ModuleType("tanh_gated")
        setattr(module, name, inside)
        monkeypatch.setitem(sys.modules, place, module)
        with pytest.raises(ValueError, match=message):
            registry.resolve_class("feed_forwards", "tanh_gated")
    vars(module).update(TanhGatedConfig=TanhGatedConfig)
    assert registry.resolve_class("feed_forwards", "tanh_gated") is TanhGatedConfig


@pytest.mark.parametrize("name", models.ROWS)
def test_a_family_that_is_a_row_of_a_table_holds_what_a_file_of_a_family_holds(name):
    row = registry.resolve("models", name)
    assert row is registry.resolve("models", name) and row.__name__ == name
    assert row.config().family == name and row.PUBLISHED.heads.keys() <= set(row.Model.heads)
    assert {*row.PRESETS} >= {"tiny"} and row.BASE["vocab_size"] == row.config().vocab_size
    assert models.ROWS[name] in models.SHARED or models.ROWS[name] in registry.available("models")
