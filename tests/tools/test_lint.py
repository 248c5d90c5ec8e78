"""The checks of tools/lint.py name what they should, and nothing else."""

import pytest

from tools.lint import SKIP, check_short_names, problems


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


def test_a_constant_says_what_it_counts_unless_the_list_has_it():
    source = "MANY = 2 * 8\n_FEW: int = -1\nMAX_ROWS = 3\nKIND = 'text'\n"
    new, other = check_short_names({"a.py": source}, [])
    assert new.startswith("a.py:1: MANY: say what it counts") and "_FEW" in other
    (gone,) = check_short_names({"a.py": source}, ["a.py MANY", "a.py _FEW", "b.py OLD"])
    assert "b.py OLD is gone" in gone
