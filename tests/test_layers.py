"""Imports go down, never up: a file reads only lower layers and its own folder."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    ["axes", "registry", "versions"],
    ["config"],
    ["pages"],
    ["runtime"],
    ["analysis"],
    ["functions"],
    ["attentions"],
    ["positions"],
    ["modules"],
    ["mixers", "feed_forwards"],
    ["models"],
    ["objectives"],
    ["data"],
    ["sharding"],
    ["checkpoints"],
    ["pretrained"],
    ["generation"],
    ["training"],
    ["plan"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def height(module: str) -> int | None:
    parts = module.split(".")
    return next((HEIGHT[key] for n in (2, 1) if (key := ".".join(parts[:n])) in HEIGHT), None)


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = [p for p in sorted(ROOT.glob("flaxformer_lite/**/*.py")) if p.name != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "flaxformer_lite")))
def test_imports_go_down(path):
    own = path.relative_to(ROOT / "flaxformer_lite").with_suffix("").parts
    mine = height(".".join(own))
    assert mine is not None, f"{path} stands in no layer: add it to LAYERS"
    for name in imports(path):
        if name.startswith("flaxformer_lite."):
            other = name.removeprefix("flaxformer_lite.")
            theirs = height(other)
            same_folder = other.split(".")[0] == own[0]
            lower = theirs is not None and theirs < mine
            assert lower or same_folder, f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["functions", "attentions", "positions"])
def test_the_pure_layer_knows_no_flax(folder):
    for path in sorted((ROOT / "flaxformer_lite" / folder).glob("*.py")):
        assert not [name for name in imports(path) if name.split(".")[0] in ("flax", "optax", "orbax")], path
