"""Measures the package's own structure, for a table of before and after.

    python -m tools.structure              # this checkout
    python -m tools.structure --repo DIR   # another one, such as a worktree of an older commit

Sizes are in nodes of Python's `ast`, so that folding lines gains nothing. The step is that of the
demo, traced and not compiled: the files of the package whose functions run, and how often a call
goes from one file of the package to another.
"""

import argparse
import ast
import collections
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOTS = (
    "pretrained/load",
    "inference/inside/capture",
    "training/program",
    "runs/trainer",
    "open_model",
    "runs/loop",
)
SHAPE = 30  # nodes; smaller functions look alike by chance
NAMES = ("id", "name", "arg", "attr")  # attributes of nodes that a shape does not have
# What names a kind of device, or an optimization for one.
DEVICE = re.compile(r"device_kind|\.platform\b|\btuned\b|is_single_cpu|materialize|tpu_tuning")
EXPORT = re.compile(r"is_symbolic_dim|jax\.export|from jax import export|ONNX")
TRACED = """
import collections, sys
from pathlib import Path
import jax
from flaxformer_lite import pages, sharding
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.data import dummy
from flaxformer_lite.training import program

package = str(Path(program.__file__).parents[1])
cfg = from_config_dict(ExperimentConfig, pages.get_config("demo"))
cfg = program.with_vocabulary(cfg, dummy.vocab_size(cfg))
mesh = sharding.build_mesh(cfg.mesh, jax.devices()[:1])
built = program.build(cfg, mesh, dummy.example(cfg))
entered = collections.Counter()
crossings = 0

def profile(frame, event, _):
    global crossings
    file = frame.f_code.co_filename
    if event != "call" or not file.startswith(package):
        return
    entered[file] += 1
    caller = frame.f_back
    while caller and not caller.f_code.co_filename.startswith(package):
        caller = caller.f_back
    crossings += bool(caller) and caller.f_code.co_filename != file

sys.setprofile(profile)
built.train_step.trace(built.target, built.batch)
sys.setprofile(None)
print(len(entered), crossings)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repo", type=Path, default=Path(__file__).parents[1])
    repo = parser.parse_args().repo.resolve()
    package = repo / "flaxformer_lite"
    for name, value in measurements(repo, package):
        print(f"{name:44} {value}")


def measurements(repo: Path, package: Path) -> Iterator[tuple[str, str]]:
    sources = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    nodes = {path: sum(1 for _ in ast.walk(tree)) for path, tree in trees.items()}
    contrib = sum(count for path, count in nodes.items() if "contrib" in path.parts)
    yield "nodes of the package", f"{sum(nodes.values()):,}"
    yield "nodes of the core, without contrib", f"{sum(nodes.values()) - contrib:,}"
    yield "files", f"{len(nodes)}"
    step = subprocess.run(
        [sys.executable, "-c", TRACED], cwd=repo, capture_output=True, text=True, check=True
    )
    entered, crossings = step.stdout.split()
    yield "files entered by a traced step of the demo", entered
    yield "calls from file to file in it", crossings
    for root in ROOTS:
        yield f"files that {root} needs", f"{len(closure(package, package / f'{root}.py'))}"
    in_nn = [path for path in sources if path.is_relative_to(package / "nn")]
    yield "files of nn that name a device", f"{sum(bool(DEVICE.search(sources[p])) for p in in_nn)}"
    yield (
        "files of nn that name an export",
        f"{sum(bool(EXPORT.search(sources[p])) for p in in_nn)}",
    )
    edges = family_edges(package, trees)
    yield "imports between family files", f"{sum(map(len, edges.values()))}"
    most = max(len(reached(edges, family)) for family in edges)
    yield "most family files that opening one runs", f"{most}"
    words = collections.Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            words[type(node).__name__] += 1
    lines = sum(text.count("\n") for text in sources.values())
    yield "lines", f"{lines:,}"
    yield "conditional expressions per 1,000 lines", f"{1000 * words['IfExp'] / lines:.1f}"
    comprehensions = sum(words[k] for k in ("ListComp", "SetComp", "DictComp", "GeneratorExp"))
    yield "comprehensions per 1,000 lines", f"{1000 * comprehensions / lines:.1f}"
    comments = 0
    alone = 0
    for text in sources.values():
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += 1
                alone += token.line.lstrip().startswith("#")
    yield "lines that are comments", f"{100 * alone / lines:.1f}%"
    yield "lines that have a comment", f"{100 * comments / lines:.1f}%"
    yield f"pairs of one shape, of {SHAPE} nodes or more", f"{repeated_pairs(trees.values())}"
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    yield "hard dependencies", f"{len(names)}"
    tests = sum(path.read_text().count("\n") for path in (repo / "tests").rglob("*.py"))
    yield "lines of tests", f"{tests:,}"


def repeated_pairs(trees: Iterable[ast.Module]) -> int:
    """Counts pairs of functions or classes that are equal but for names, texts and numbers."""
    count: collections.Counter[str] = collections.Counter()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                shape = shape_of(node)
                if shape.count("(") >= SHAPE:
                    count[shape] += 1
    return sum(times * (times - 1) // 2 for times in count.values())


def shape_of(definition: ast.FunctionDef | ast.ClassDef) -> str:
    """Returns a definition without its docstring, names and constants, one "(" for each node."""
    copy = ast.parse(ast.unparse(definition)).body[0]
    assert isinstance(copy, (ast.FunctionDef, ast.ClassDef)), "as it was"
    if ast.get_docstring(copy) is not None:
        del copy.body[0]
    for node in ast.walk(copy):
        for name in NAMES:
            if isinstance(getattr(node, name, None), str):
                setattr(node, name, "_")
        if isinstance(node, ast.Constant):
            node.value = 0
    return ast.dump(copy)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(package: Path, name: str) -> Path | None:
    """Returns the file of the package that a dotted name imports, or None."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] == package.name:
        path = package.joinpath(*parts[1:])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        parts.pop()
    return None


def closure(package: Path, start: Path) -> set[Path]:
    """Returns the files that a file needs, but for those that import nothing, as the tests do."""
    needed: set[Path] = set()
    waiting = [start]
    while waiting:
        for name in imported(ast.parse(waiting.pop().read_text())):
            file = file_of(package, name)
            if file and file not in needed:
                needed.add(file)
                waiting.append(file)
    empty = set()
    for file in needed:
        if file.name == "__init__.py" and not [*imported(ast.parse(file.read_text()))]:
            empty.add(file)
    return needed - empty - {start}


def family_edges(package: Path, trees: dict[Path, ast.Module]) -> dict[Path, set[Path]]:
    """Returns the family files that each family file imports."""
    families = {path for path in trees if path.parent == package / "models"}
    families = {path for path in families if "PUBLISHED" in path.read_text()}
    edges = {}
    for path in families:
        files = {file_of(package, name) for name in imported(trees[path])}
        edges[path] = (files & families) - {path}
    return edges


def reached(edges: dict[Path, set[Path]], start: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        for file in edges[waiting.pop()] - found:
            found.add(file)
            waiting.append(file)
    return found


if __name__ == "__main__":
    main()
