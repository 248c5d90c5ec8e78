"""What the forge runs and shows, which no forge has run here: targets exist, actions are pinned."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def targets():
    """Returns the names of all targets of the Makefile, and those that it includes."""
    text = (ROOT / "Makefile").read_text() + (ROOT / "tools" / "tools.mk").read_text()
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


def test_there_is_a_workflow_for_each_job_of_the_workshop():
    assert [path.stem for path in WORKFLOWS] == ["docs", "lint", "nightly", "release", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_step_runs_a_target_of_the_makefile_and_nothing_else(path):
    for job in jobs(path):
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            if "run" not in step:
                continue
            program, target, *_ = step["run"].split()
            assert program == "make"
            named = [target]
            if target == '"$TARGET"':
                named = matrix["target"]
            assert targets().issuperset(named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_jobs_may_only_read(path):
    text = path.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used and all(PINNED.fullmatch(name) for name in used)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    assert all("timeout-minutes" in job for job in jobs(path))


def test_an_action_has_one_version_everywhere():
    used = set()
    for path in WORKFLOWS:
        used |= set(re.findall(r"uses: (.*)", path.read_text()))
    assert len(used) == len({name.partition("@")[0] for name in used})


@pytest.mark.parametrize("name", ["bug", "family", "question", "config"])
def test_an_issue_form_can_be_read(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    if name == "config":
        assert form["contact_links"]
        return
    ids = [field["id"] for field in form["body"]]
    assert form["name"] and form["description"] and len(ids) == len(set(ids))


def test_the_project_has_one_address():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    home = urls["Homepage"]
    pages = ("README.md", "SECURITY.md", "CITATION.cff", "docs/install.md")
    for name in (*pages, ".github/ISSUE_TEMPLATE/config.yml"):
        found = re.findall(r"https://github\.com/[\w-]+/flaxformer_lite", (ROOT / name).read_text())
        assert set(found) == {home}, name
