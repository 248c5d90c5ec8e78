"""Checks for which ruff has no rule.

    python -m tools.lint

Reports assignments that pack unlike values into a line, `a, b = x, y`, comments that switch the
formatter off, and names of other libraries that are not public. Unpacking a call, swapping and
updating at once (`a, b = b, a + b`) are fine.
"""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

SKIP = "fmt: " + "skip"  # in two parts, so that this line is none
PRIVATE = "flaxformer_lite/private_names.py"  # the one file that may use private names
PUBLIC = ("_asdict", "_exit", "_fields", "_make", "_replace")  # documented all the same
UNDOCUMENTED = ("jax.interpreters", "jax.lib")  # without an underscore, but not of JAX's API
SETTERS = ("getattr", "setattr", "hasattr", "delattr")


def problems(source: str, defined: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Yields the line and the message of each problem in a file's text.

    Args:
      source: the file's text.
      defined: private names of this repository.
    """
    for number, line in enumerate(source.splitlines(), start=1):
        if SKIP in line:
            yield number, f"`{SKIP}`: lay the line out as the formatter does"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and any(map(_is_packed, node.targets, [node.value])):
            yield node.lineno, "packed assignment: give each name a line of its own"
        for name in _names(node):
            if _is_private(name, defined):
                yield node.lineno, f"{name} is not public: use it in {PRIVATE}, with the reason"


def private_definitions(source: str) -> set[str]:
    """Returns the names with a leading underscore that a file defines or assigns."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if name.startswith("_")}


def _names(node: ast.AST) -> list[str]:
    """Returns the dotted names of modules and attributes that a node uses."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        is_of_name = isinstance(node.value, ast.Name)
        return [f"{node.value.id}.{node.attr}" if is_of_name else node.attr]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        name = node.args[1] if called in SETTERS and len(node.args) > 1 else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return [name.value]
    return []


def _is_private(name: str, defined: Collection[str]) -> bool:
    if any(f"{name}.".startswith(f"{module}.") for module in UNDOCUMENTED):
        return True
    for part in name.split("."):
        is_special = part.startswith("__") and part.endswith("__")
        is_known = part in PUBLIC or part in defined or not part.strip("_")
        if part.startswith("_") and not is_special and not is_known:
            return True
    return False


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
    paths = filter(Path.exists, map(Path, listed.stdout.splitlines()))
    sources = {str(path): path.read_text(encoding="utf-8") for path in paths}
    defined = set[str]().union(*map(private_definitions, sources.values()))
    count = 0
    for path, source in sources.items():
        for line, message in problems(source, defined):
            if path == PRIVATE and PRIVATE in message:
                continue
            print(f"{path}:{line}: {message}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
