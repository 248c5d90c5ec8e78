"""The README's Python runs as written and computes what it says; the page fits into five
minutes."""

import re
from pathlib import Path

import jax

from tools import docs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
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


def test_readme_counts_the_families_of_the_scoreboard():
    scoreboard = (ROOT / "docs" / "families.md").read_text()
    (count,) = re.findall(r"^(\d+) families in both directions", scoreboard, re.M)
    assert f"[{count} model\nfamilies](docs/families.md)" in README
