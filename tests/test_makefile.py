"""Files, folders and modules that the Makefile names exist, as its targets are seldom all run."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = (ROOT / "Makefile", ROOT / "tools/tools.mk")
TARGETS = "\n".join(path.read_text() for path in FILES)
MAKEFILE = re.sub("##.*", "", TARGETS)  # without the list of targets
FOLDERS = "benchmarks|configs|docs|examples|flaxformer_lite|launch|tests|tools"
PATHS = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*", MAKEFILE)
MODULES = re.findall(rf"-m ((?:{FOLDERS})[\w.]*)", MAKEFILE)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_a_path_exists(path):
    # or what begins like it, as pages beside pictures
    assert list(ROOT.glob(f"{path.rstrip('/')}*"))


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


def test_each_tool_has_its_line():
    named = set(re.findall(r"^([a-z][a-z-]*):.*##", FILES[1].read_text(), re.M))
    assert named == set(re.findall(r"`make ([a-z-]+)`", (ROOT / "tools/README.md").read_text()))


def test_each_stored_file_of_the_tests_has_a_maker():
    fixtures = (ROOT / "tests/FIXTURES.md").read_text()
    rows = re.findall(r"^\| ([\w./]+) \| ([^|]+) \|", fixtures, re.M)
    places = [place for place, _ in rows if place != "files"]
    stored = ["git", "ls-files", "--", "tests/*.json", "tests/*.npz", "tests/*.txt"]
    listed = subprocess.run(stored, cwd=ROOT, capture_output=True, text=True, check=True)
    for path in listed.stdout.split():
        inside = path.removeprefix("tests/")
        assert any(f"{inside}/".startswith(f"{place}/") for place in places), path
    for _, makers in rows[1:]:
        for maker in makers.split(", "):
            assert (ROOT / maker).is_file(), maker
