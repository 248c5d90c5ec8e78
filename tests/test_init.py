"""The package's names: what editors and type checkers see loads."""

import tomllib
from pathlib import Path

import flaxformer_lite

ROOT = Path(__file__).parents[1]


def test_every_name_loads():
    assert len(flaxformer_lite.__all__) > 30 and "Attention" in dir(flaxformer_lite)
    for name in flaxformer_lite.__all__:
        assert getattr(flaxformer_lite, name).__name__.split(".")[-1]


def test_one_version_and_no_cap_on_jax_and_flax():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]  # of __version__; tests/test_wheel.py builds it
    extras = project["optional-dependencies"]
    assert any(line.startswith("jinja2") for line in project["dependencies"]), "of chat models"
    assert len(project["dependencies"]) <= 13
    needs = project["dependencies"] + extras["cuda"] + extras["tpu"] + extras["tpu-plan"]
    needs = [line.partition(";")[0] for line in needs]  # without the marker of Python
    capped = [line for line in needs if line.startswith(("jax", "flax")) and "<" in line]
    assert not capped
