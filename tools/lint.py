"""Checks that a line says one thing, for which ruff has no rule.

    python -m tools.lint

Reports assignments that pack unlike values into a line, `a, b = x, y`, and comments that switch the
formatter off. Unpacking a call, swapping and updating at once (`a, b = b, a + b`) are fine.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SKIP = "fmt: " + "skip"  # in two parts, so that this line is none


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the message of each problem in a file's text."""
    for number, line in enumerate(source.splitlines(), start=1):
        if SKIP in line:
            yield number, f"`{SKIP}`: lay the line out as the formatter does"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and any(map(_is_packed, node.targets, [node.value])):
            yield node.lineno, "packed assignment: give each name a line of its own"


def _is_packed(target: ast.expr, value: ast.expr) -> bool:
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    is_unpacking = any(isinstance(part, ast.Starred) for part in value.elts)
    assigned = set(map(ast.unparse, target.elts))
    is_update = any(ast.unparse(node) in assigned for node in ast.walk(value))
    return not (is_unpacking or is_update)


def main() -> int:
    """Prints the problems of all tracked Python files; returns 1 if there are any."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    count = 0
    for path in filter(Path.exists, map(Path, listed.stdout.splitlines())):
        for line, message in problems(path.read_text(encoding="utf-8")):
            print(f"{path}:{line}: {message}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
