"""Checks for which ruff has no rule.

    python -m tools.lint

Reports assignments that pack unlike values into a line, `a, b = x, y`, comments that switch the
formatter off, and names of other libraries that are not public. Unpacking a call, swapping and
updating at once (`a, b = b, a + b`) are fine.

In the package, the name of a numeric constant has two words: it says what is counted, and of what,
as in `MAX_COLUMNS_IN_MESSAGE`. tools/short_names.txt lists those from before the rule, and may only
get shorter.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

SKIP = "fmt: " + "skip"  # in two parts, so that this line is none
PRIVATE = "flaxformer_lite/private_names.py"  # the one file that may use private names
PUBLIC = ("_asdict", "_exit", "_fields", "_make", "_replace")  # documented all the same
UNDOCUMENTED = ("jax.interpreters", "jax.lib")  # without an underscore, but not of JAX's API
SHORT_NAMES = Path("tools/short_names.txt")
ONE_WORD = re.compile(r"_?[A-Z0-9]+")
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


def short_constants(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each numeric constant of a module whose name is one word."""
    for node in ast.parse(source).body:
        target = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        if not isinstance(target, ast.Name) or not ONE_WORD.fullmatch(target.id):
            continue
        if node.value is not None and _is_number(node.value):
            yield node.lineno, target.id


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def check_short_names(sources: Mapping[str, str], allowed: Collection[str]) -> Iterator[str]:
    """Yields what is wrong with short names: new ones, and entries of the list that are gone.

    Args:
      sources: the text of each file of the package.
      allowed: `path NAME` of each short name from before the rule.
    """
    found = set()
    for path, source in sources.items():
        for line, name in short_constants(source):
            found.add(f"{path} {name}")
            if f"{path} {name}" not in allowed:
                yield f"{path}:{line}: {name}: say what it counts, and of what, in two words"
    for entry in sorted(set(allowed) - found):
        yield f"{SHORT_NAMES}: {entry} is gone; remove the line"


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
    package = {path: text for path, text in sources.items() if path.startswith("flaxformer_lite/")}
    for message in check_short_names(package, SHORT_NAMES.read_text().splitlines()):
        print(message)
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
