"""Each name of private_names.py still has no public replacement; a test that fails says which can
go."""

import argparse
import sys
from types import SimpleNamespace

import jax
import pytest

from flaxformer_lite import private_names
from tools.lint import problems


def test_jax_distributed_has_no_public_store_process_number_or_detection():
    """Otherwise `coordination_service`, `process_id` or `detect_cluster` can go."""
    names = {name for name in dir(jax.distributed) if not name.startswith("_")}
    assert names <= {"initialize", "is_initialized", "shutdown"}


def test_functions_with_a_rule_for_reverse_mode_have_none_for_forward_mode():
    """Otherwise `primitive_rules` can go."""

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, d: (d,))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (1.0,), (1.0,))
    assert not hasattr(f, "defjvp")


def test_a_result_is_looked_for_from_the_last_node(monkeypatch):
    """`newest_nodes_first` can go once jax2onnx, which pyproject.toml bounds, does so itself."""
    outputs = [SimpleNamespace(outputs=[number]) for number in range(9)]
    ctx = SimpleNamespace(builder=SimpleNamespace(nodes=outputs, inputs=["x"], initializers=["w"]))
    read = []

    def matches(existing, value):
        read.append(existing)
        return existing == value

    name = "jax2onnx.converter.output_binding"
    binding = SimpleNamespace(_value_matches_reference=matches, _value_is_graph_connected=None)
    monkeypatch.setitem(sys.modules, name, binding)
    with private_names.newest_nodes_first():
        search = binding._value_is_graph_connected
        assert search(ctx, 8) and read == [8]
        assert search(ctx, "x") and search(ctx, "w") and not search(ctx, 9)
    assert binding._value_is_graph_connected is None


def test_two_passes_that_remove_casts_are_left_out(monkeypatch):
    """`without_removal_of_casts` can go once jax2onnx does not read all nodes for each cast."""
    names = ("name_fix", "remove_redundant_casts", "remove_redundant_casts_after_propagation")
    passes = tuple(SimpleNamespace(name=name) for name in names)
    optimizations = SimpleNamespace(_OPTIMIZER_PASSES=passes)
    monkeypatch.setitem(sys.modules, "jax2onnx.converter.ir_optimizations", optimizations)
    with private_names.without_removal_of_casts():
        assert passes[:1] == optimizations._OPTIMIZER_PASSES
    assert passes == optimizations._OPTIMIZER_PASSES


def test_parsers_have_no_public_list_of_flags():
    """Otherwise `flags` can go."""
    parser = argparse.ArgumentParser()
    known = {action.dest for action in private_names.flags(parser)}
    assert known == {"help"}
    public = [name for name in vars(parser) if not name.startswith("_")]
    assert not any(getattr(parser, name) is private_names.flags(parser) for name in public)


def test_jax_has_no_cache_of_programs_in_memory():
    """Otherwise `compiler` and `mlir` can go, and tests/programs.py with them."""
    options = [name for name in jax.config.values if "cache" in name]
    assert not [name for name in options if "memory" in name or "in_process" in name]


@pytest.mark.parametrize(
    "line",
    [
        "from jax._src import core",
        "import jax._src.core",
        "from jax.interpreters import ad",
        "from orbax.checkpoint import _internal",
        "x = jax._src",
        "parser._actions",
        "getattr(client, '_call')",
        "jax.interpreters.ad",
    ],
)
def test_private_names_are_refused_elsewhere(line):
    messages = [message for _, message in problems(line)]
    assert messages
    assert all("private_names.py" in message for message in messages)


OWN = ["self._own", "from __future__ import annotations", "x.__name__", "a._replace(a=1)", "_ = 1"]


@pytest.mark.parametrize("line", OWN)
def test_own_names_are_fine(line):
    assert not list(problems(line, {"_own"}))
