"""Imports go down, never up, also those inside functions and plug-ins asked for by name."""

import ast
import functools
import re
from pathlib import Path

import pytest

from flaxformer_lite.registry import FOLDERS
from tools.structure import DEVICE

PACKAGE = Path(__file__).parents[1] / "flaxformer_lite"
ORDER = re.compile(r"from bottom to top: ([\w\s,]+)\.")
CONTRIBUTING = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
LAYERS = (*re.split(r",\s+", ORDER.search(CONTRIBUTING)[1]), "__main__")
# The files of the package that a file needs, also those that it imports only inside functions.
MOST_FILES = {
    "pretrained/load": 42,
    "inference/inside/capture": 33,
    "training/program": 42,
    "open_model": 72,
    "runs/trainer": 40,
    "runs/loop": 139,
    "embedder": 101,
    "runs/run": 232,
    "cli/train": 240,
}
MOST_FAMILY_EDGES = 75  # imports of one family by another
MOST_FAMILIES_OPENED = 4  # that opening a family runs, itself among them
MOST_CALLERS = {"is_url": 11, "is_workdir": 10}  # files that import it
MOST_AUXILIARY = 40  # lines of the package outside the files of the auxiliary model
MOST_FIELDS = 438  # of config records, each counted where it is declared
MOST_ANY = 330  # annotations `Any` in the package
# The record that a mesh implements, what differs by device, what that is made of, and the choice of
# an attention.
KNOW_DEVICES = {
    "functions/sharding.py",
    "functions/device_ops.py",
    "functions/tuning.py",
    "attentions/dispatch.py",
}
MOST_DATA_FILES = 26
MOST_DATA_FLOORS = 8
MOST_DATA_LINES = 450  # of a file
REGISTRY = ("registry.resolve", "registry.resolve_class", "registry.available")
# A config's plug-in fields name files of the folders above it; what they hold is imported when a
# config is read.
NAMES_PLUGINS = "config"
# which has a name for all
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    """Lists the nodes that the tests look at: imports, calls and names."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Name)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


@functools.cache
def imports(source: str) -> list[str]:
    """Modules and names that a file imports, wherever the import stands."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def plugin_folders(source: str) -> list[str]:
    """Layers whose plug-ins a file asks the registry for; "" where it names none."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in REGISTRY:
            folder = node.args[0]
            if isinstance(folder, ast.Constant):
                found += [place.split(".")[0] for place in FOLDERS[folder.value]]
            else:
                found.append("")
    return found


def ways_up(layer: str, source: str) -> list[str]:
    """Lists what a file of this layer takes from a higher one."""
    own = [name.split(".")[1] for name in imports(source) if name.startswith("flaxformer_lite.")]
    # A folder that is only known when the program runs may be any of them.
    if layer != NAMES_PLUGINS:
        own += [folder or "cli" for folder in plugin_folders(source)]
    return [name for name in own if LAYERS.index(name) > LAYERS.index(layer)]


def test_each_file_and_folder_is_a_layer():
    assert {layer_of(path) for path in FILES} == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    assert not ways_up(layer_of(path), path.read_text())


@pytest.mark.parametrize(
    ("layer", "line", "above"),
    [
        ("nn", "from flaxformer_lite.models import llama", ["models"]),
        ("nn", "def f():\n    from flaxformer_lite import training", ["training"]),
        ("nn", "def f(name):\n    return registry.resolve('models', name)", ["models"]),
        ("nn", "registry.available(folder)", ["cli"]),
        ("cli", "registry.available(folder)", []),
        ("config", "registry.resolve('models', name)", []),
        ("models", "registry.resolve('attentions', name)\nimport flaxformer_lite.models.llama", []),
    ],
)
def test_ways_up_are_seen(layer, line, above):
    assert ways_up(layer, line) == above


def file_of(name: str) -> Path | None:
    """Returns the file of the package that a dotted name imports; None for a name of another
    package."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] == PACKAGE.name:
        path = PACKAGE.joinpath(*parts[1:])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        parts.pop()  # a name within a module
    return None


def closure(path: Path) -> set[Path]:
    """Returns the files of the package that a file needs, itself left out, and so are those that
    import nothing of it, such as the empty `__init__.py` of a folder."""
    needed: set[Path] = set()
    reached = [path]
    while reached:
        for name in imports(reached.pop().read_text()):
            file = file_of(name)
            if file and file not in needed:
                needed.add(file)
                reached.append(file)
    inits = {file for file in needed if file.name == "__init__.py"}
    return needed - {file for file in inits if not imports(file.read_text())} - {path}


def test_families_stand_on_a_common_ground():
    """What many families share is below all of them, so that opening one runs few others."""
    files = (PACKAGE / "models").glob("*.py")
    families = {path for path in files if "PUBLISHED" in path.read_text()}
    others = {}
    for path in families:
        others[path] = {file_of(name) for name in imports(path.read_text())} & families - {path}
    assert sum(map(len, others.values())) <= MOST_FAMILY_EDGES
    for path in families:
        assert len(closure(path) & families) <= MOST_FAMILIES_OPENED, path
    for path in (PACKAGE / "models/common").glob("*.py"):
        assert not {file_of(name) for name in imports(path.read_text())} & families, path


def test_nothing_outside_contrib_imports_it():
    for path in FILES:
        names = [name for name in imports(path.read_text()) if "flaxformer_lite.contrib" in name]
        if layer_of(path) == "contrib":
            # nor one package of contrib another
            own = f"flaxformer_lite.contrib.{path.relative_to(PACKAGE / 'contrib').parts[0]}"
            names = [name for name in names if not f"{name}.".startswith(f"{own}.")]
        assert not names, path


def test_contrib_stands_on_public_names():
    for path in (PACKAGE / "contrib").rglob("*.py"):
        names = [name for name in imports(path.read_text()) if name.startswith("flaxformer_lite.")]
        assert not [name for name in names if "._" in name], path


@pytest.mark.parametrize("package", sorted((PACKAGE / "contrib").glob("*/__init__.py")), ids=str)
def test_a_package_of_contrib_says_what_it_was_tested_against(package):
    words = " ".join((ast.get_docstring(ast.parse(package.read_text())) or "").split())
    assert "Tested" in words and "Not tested" in words


@pytest.mark.parametrize("file", MOST_FILES)
def test_a_file_of_the_library_needs_few_others(file):
    needed = sorted(str(path.relative_to(PACKAGE)) for path in closure(PACKAGE / f"{file}.py"))
    assert len(needed) <= MOST_FILES[file], needed


def test_a_closure_follows_imports_inside_functions_and_names_in_modules():
    inside = file_of("flaxformer_lite.nn.mixers.attention.Attention")
    assert inside == PACKAGE / "nn" / "mixers" / "attention.py"
    assert file_of("jax.numpy") is None
    names = {str(path.relative_to(PACKAGE)) for path in closure(PACKAGE / "open_model.py")}
    assert {"checkpoints/workdir.py", "storage/stores.py"} <= names


@pytest.mark.parametrize("folder", ["nn/functions", "nn/attentions", "nn/positions"])
def test_the_pure_layer_knows_no_flax(folder):
    for path in sorted((PACKAGE / folder).glob("*.py")):
        found = {name.split(".")[0] for name in imports(path.read_text())}
        assert not found & {"flax", "optax", "orbax"}, path


def test_config_records_have_few_fields():
    """A new field names the one that it replaces, or the paper that needs it."""
    classes = [node for path in FILES for node in ast.parse(path.read_text()).body]
    classes = [node for node in classes if isinstance(node, ast.ClassDef)]
    records = {"Record"}
    while True:
        known = len(records)
        for node in classes:
            if {ast.unparse(base).split(".")[-1] for base in node.bases} & records:
                records.add(node.name)
        if len(records) == known:
            break
    counts = {}
    for node in classes:
        if node.name in records and node.decorator_list:
            lines = [line for line in node.body if isinstance(line, ast.AnnAssign)]
            fields = [line for line in lines if "ClassVar" not in ast.unparse(line.annotation)]
            counts[node.name] = len(fields)
    assert sum(counts.values()) <= MOST_FIELDS, sorted(counts, key=counts.get)[-5:]


def untyped(source):
    """Counts the names `Any` outside of imports."""
    names = (node for node in nodes(source) if isinstance(node, ast.Name))
    return sum(node.id == "Any" for node in names)


def test_few_annotations_are_any():
    assert untyped("from typing import Any\n\ndef f(x: Any) -> list[Any]: ...") == 2
    counts = {str(path): untyped(path.read_text()) for path in FILES}
    assert sum(counts.values()) <= MOST_ANY, sorted(counts, key=counts.get)[-5:]


def test_few_files_know_of_an_auxiliary_model():
    """Who runs with one asks `Models`, and who reads its weights `referenced_weights`."""
    own = ("objectives/auxiliary_model", "training/bound_models", "runs/start/referenced_weights")
    known = re.compile(r"auxiliary[ _]model|referenced_weights|AuxiliaryModel|\bauxiliary\b *[:=)]")
    lines = []
    for path in FILES:
        if str(path.relative_to(PACKAGE).with_suffix("")) not in own:
            lines += [line for line in path.read_text().splitlines() if known.search(line)]
    assert len(lines) < MOST_AUXILIARY, lines


@pytest.mark.parametrize("function", MOST_CALLERS)
def test_few_files_tell_what_a_path_is(function):
    """The others are given a folder, or ask `model_folder.find_run_config`."""
    suffix = f".{function}"
    files = [p for p in FILES if any(name.endswith(suffix) for name in imports(p.read_text()))]
    assert len(files) <= MOST_CALLERS[function], files


def test_four_files_of_nn_know_kinds_of_devices():
    """Equations read as mathematics: they ask for what they want to compute, by its name."""
    nn = PACKAGE / "nn"
    knowing = {path for path in nn.rglob("*.py") if DEVICE.search(path.read_text())}
    assert {str(path.relative_to(nn)) for path in knowing} == KNOW_DEVICES


def test_the_data_path_has_few_files_and_floors():
    files = {path for path in (PACKAGE / "data").glob("*.py") if path.name != "__init__.py"}

    @functools.cache
    def floor(path: Path) -> int:
        below = {file_of(name) for name in imports(path.read_text())} & files - {path}
        return 1 + max(map(floor, below), default=0)

    assert len(files) <= MOST_DATA_FILES
    assert max(map(floor, files)) <= MOST_DATA_FLOORS
    assert max(len(path.read_text().splitlines()) for path in files) <= MOST_DATA_LINES
