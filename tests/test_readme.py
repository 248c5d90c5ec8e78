"""The README's Python runs as written, and the files it points to exist."""

import re
from pathlib import Path

import jax

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_python_blocks_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        scope = {}
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
            exec(block, scope)
    assert scope["logits"].shape == (1, 4, 50257)
    assert scope["out"].shape == (1, 4, 2, 8)
    assert scope["ids"].shape == (1, 12)
    picture = re.search(r"```\n(#.*?)```", TEXT, re.S)[1]
    assert capsys.readouterr().out == picture


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_named_pages_exist():
    for name in set(re.findall(r"configs/(\w+)\.py", TEXT)):
        assert (ROOT / "configs" / f"{name}.py").exists(), name
