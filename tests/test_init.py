"""The package's names: editors and type checkers see what importing gives."""

import ast
import tomllib
from pathlib import Path

import flaxformer_lite

ROOT = Path(__file__).parents[1]


def test_names_for_editors_are_those_that_load():
    tree = ast.parse((ROOT / "flaxformer_lite/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    twins = {(alias.asname, alias.name): node.module for node in block.body for alias in node.names}
    assert twins == {(name, name): f"flaxformer_lite.{module}" for name, module in flaxformer_lite._MODULE_OF.items()}


def test_every_name_loads():
    for name in flaxformer_lite.__all__:
        assert getattr(flaxformer_lite, name).__name__.split(".")[-1]


def test_one_version_and_no_cap_on_jax_and_flax():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == flaxformer_lite.__version__
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *(line for name in ("cuda", "tpu", "tpu-plan") for line in extras[name])]
    capped = [line for line in needs if line.startswith(("jax", "flax")) and "<" in line]
    assert not capped
