"""The checks of tools/lint.py name what they should, and nothing else."""

import pytest

from tools.lint import SKIP, problems


@pytest.mark.parametrize(
    "line",
    ["a, b = 1, 2", "self.a, b = f(x), g(x)", "cfg, run = self.cfg, self.run", f"a = 1  # {SKIP}"],
)
def test_folded_lines_are_named(line):
    ((number, message),) = problems(f"x = 1\n{line}\n")
    assert number == 2
    assert "packed assignment" in message or SKIP in message


@pytest.mark.parametrize(
    "line",
    [
        "a, b = f(x)",
        "a, b = b, a",
        "a, b = b, a + b",
        "B, T, S = *x.shape[:2], y.shape[1]",
        "for a, b in ((1, 2), (3, 4)):\n    pass",
        "pair = 1, 2",
    ],
)
def test_unpacking_and_swaps_are_fine(line):
    assert not list(problems(line))
