"""The README's Python runs as written and computes what it says; the page fits into five
minutes."""

import re
from pathlib import Path

import jax

from tools import docs

README = (Path(__file__).parents[1] / "README.md").read_text()
LINES = 120


def test_readme_is_short():
    assert len(README.splitlines()) <= LINES


def test_readme_blocks_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        scope = docs.check(README)
    assert scope["logits"].shape == (1, 4, 50257) and scope["ids"].shape == (1, 12)
    assert scope["out"].shape == (1, 4, 2, 8)
    assert re.search(r"```\n(#.*?)```", README, re.S)[1] == scope["mask"].picture(4) + "\n"
