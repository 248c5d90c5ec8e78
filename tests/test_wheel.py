"""The package as it is installed: pages, py.typed and the console command are in the wheel, and it
runs from any folder."""

import configparser
import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite import pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The files of a wheel of the tracked sources, built with the setuptools that is there."""
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    for name in (
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "flaxformer_lite",
        "configs",
    ):
        (source / name).symlink_to(ROOT / name)
    build = "from setuptools import build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, out]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(out / "site")
    return out / "site"


def test_it_holds_all_sources_and_nothing_else_on_top(installed):
    ours = {str(path.relative_to(ROOT)) for path in ROOT.glob("flaxformer_lite/**/*.py")}
    ours |= {f"flaxformer_lite/configs/{name}.py" for name in pages.names()}
    templates = ("base.html", "curve.html", "figure.html", "parts.html", "report.html")
    for folder, names in {
        "flaxformer_lite": ("py.typed", "__init__.pyi"),
        "flaxformer_lite/contrib": ("compare/compare.html", "look/page.html"),
        "flaxformer_lite/runs/report/templates": (*templates, "model_card.md", "pointer.js"),
    }.items():
        ours |= {f"{folder}/{name}" for name in names}
    held = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {path for path in held if ".dist-info/" not in path} == ours


def test_its_version_is_the_package_s_and_pages_lead_home(installed):
    (path,) = installed.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    assert metadata["Version"] == flaxformer_lite.__version__
    labels = {url.partition(",")[0] for url in metadata.get_all("Project-URL")}
    assert labels == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert metadata["Author"] == "flaxformer_lite contributors"


def test_the_command_finds_its_pages_from_an_empty_folder(installed, tmp_path):
    """The console command of the wheel runs in a folder of its own."""
    (entries,) = installed.glob("*.dist-info/entry_points.txt")
    script = configparser.ConfigParser()
    script.read(entries)
    module, _, function = script["console_scripts"]["flaxformer_lite"].partition(":")
    path = tmp_path / "flaxformer_lite"
    path.write_text(f"from {module} import {function}\n{function}()\n")
    command = [sys.executable, path, "train", "--config=gpt2_large", "--help"]
    env = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "--config.model.d_model=1280 " in done.stdout
