"""Runs commands in a stranger's folder: `python -P -m tests.cli.planting RAN < commands.json`.

Each name of a module that is looked for and not installed gets a file in the current folder, at the
moment it is looked for. A file that is run writes its name to RAN. Prints, as JSON, the exit code
of each command, the names, and those that any code could import after a command.
"""

import importlib.util
import json
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from flaxformer_lite import __main__ as door
from flaxformer_lite.cli.current_folder import Finder

HERE = Path.cwd()


class Planter:
    """A finder that finds nothing, and plants a file for what is not installed."""

    def __init__(self, ran):
        self.names = set()
        self._ran = ran

    def find_spec(self, name, path=None, target=None):
        if path is None and name not in self.names and not self._is_installed(name):
            self.names.add(name)
            Path(HERE, f"{name}.py").write_text(f"open({self._ran!r}, 'a').write('{name} ')")
            sys.path_importer_cache.pop(str(HERE), None)  # it may have been listed just now

    def _is_installed(self, name):
        elsewhere = [path for path in sys.path if path not in ("", str(HERE))]
        spec = PathFinder.find_spec(name, elsewhere)
        if spec is not None:
            # The parts of a package without __init__.py give way to a module on a later path.
            return spec.origin is not None
        others = [f for f in sys.meta_path if f not in (self, PathFinder)]
        return any(f.find_spec(name, None) for f in others if not isinstance(f, Finder))


def exit_code(command):
    try:
        door.main(command)
    except SystemExit as end:
        return end.code or 0
    return 0


def importable(names):
    """Lists the planted modules that code of any other module finds."""
    found = []
    for name in sorted(names):
        spec = None
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin == str(HERE / f"{name}.py"):
            found.append(name)
    return found


if __name__ == "__main__":
    planter = Planter(sys.argv[1])
    sys.meta_path.insert(0, planter)
    codes = {}
    exposed = {}
    stdout = sys.stdout
    sys.stdout = sys.stderr
    for name, command in json.load(sys.stdin).items():
        codes[name] = exit_code(command)
        exposed[name] = importable(planter.names)
    json.dump({"codes": codes, "names": sorted(planter.names), "exposed": exposed}, stdout)
