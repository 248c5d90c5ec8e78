"""Files, folders and modules that the Makefile names exist, as its targets are seldom all run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = re.sub("##.*", "", (ROOT / "Makefile").read_text())  # without the list of targets
FOLDERS = "benchmarks|configs|docs|examples|flaxformer_lite|launch|tests|tools"
PATHS = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*", MAKEFILE)
MODULES = re.findall(rf"-m ((?:{FOLDERS})[\w.]*)", MAKEFILE)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_a_path_exists(path):
    assert list(ROOT.glob(f"{path.rstrip('/')}*")), (
        "or what begins like it, as pages beside pictures"
    )


@pytest.mark.parametrize("module", sorted(set(MODULES)))
def test_a_module_exists(module):
    place = ROOT / module.replace(".", "/")
    assert place.with_suffix(".py").exists() or (place / "__init__.py").exists() or place.is_dir()


def test_what_a_target_says_to_continue_by_the_same_command_continues():
    """A workdir with the date in its name is another at each start."""
    workdirs = re.findall(r"--workdir=(\S+)", MAKEFILE)
    assert "runs/demo" in workdirs
    assert not [workdir for workdir in workdirs if "date" in workdir]


def test_both_are_found():
    assert "tests/cli/test_main.py" in PATHS and "tools.docs" in MODULES
