"""The Python in README.md and docs/ runs as written, cheap commands parse, and links and names exist."""

import re
import shlex
import sys
from pathlib import Path

import jax
import pytest

from flaxformer_lite import __main__, pages

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs").glob("*/README.md"),
]
TEXTS = {page: page.read_text() for page in PAGES}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def run_blocks(text: str) -> dict:
    scope: dict = {}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for block in re.findall(r"```python\n(.*?)```", text, re.S):
            exec(block, scope)
    return scope


def test_readme_blocks_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = TEXTS[ROOT / "README.md"]
    scope = run_blocks(text)
    assert scope["logits"].shape == scope["train_logits"].shape == (1, 4, 50257)
    assert scope["out"].shape == (1, 4, 2, 8) and scope["y"].shape == (1, 4, 32)
    assert scope["ids"].shape == (1, 12)
    whole = scope["model"].apply({"params": scope["params"]}, scope["input_ids"]).logits
    assert abs(scope["rest"].logits - whole[:, 3:]).max() < 1e-4
    assert capsys.readouterr().out == re.search(r"```\n(#.*?)```", text, re.S)[1]


@pytest.mark.filterwarnings("ignore:'VariableState' was removed")  # of qwix 0.1.8
@pytest.mark.parametrize("name", [name for name, page in zip(NAMES, PAGES, strict=True) if "```python" in TEXTS[page]])
def test_python_blocks_run(name, monkeypatch, tmp_path):
    if name != "README.md":
        monkeypatch.chdir(tmp_path)
        run_blocks(TEXTS[ROOT / name])


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", TEXTS[page]):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], anchor


def commands() -> list[str]:
    found = []
    for text in TEXTS.values():
        text = re.sub(r"\\\n\s*", "", text)
        found += re.findall(r"^    (?:\w+=\S+ )*flaxformer_lite ([a-z-]+ .*?)(?:\s+#.*)?$", text, re.M)
    return sorted(set(found))


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
@pytest.mark.parametrize("line", commands())
def test_commands_are_valid(line, capsys, monkeypatch):
    """Checks that the command, its flags and its page exist, and that the config with its overrides holds together."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    command, *words = shlex.split(line)
    config = [word for word in words if word.startswith("--config") and "my_module:" not in line]
    with pytest.raises(SystemExit) as end:
        __main__.main([command, *config, "--help"])
    shown, said = capsys.readouterr()
    assert not end.value.code and "usage" in shown, said
    for word in words:
        if word.startswith("--") and not word.startswith("--config."):
            assert word.partition("=")[0].replace("-", "_") in shown.replace("-", "_"), word


@pytest.mark.parametrize("name", NAMES)
def test_named_pages_exist(name):
    text = TEXTS[ROOT / name]
    for page in {*re.findall(r"configs/(\w+)\.py", text), *re.findall(r"--config=([a-z]\w*)(?=[:\s`])", text)}:
        assert page in pages.names(), page
