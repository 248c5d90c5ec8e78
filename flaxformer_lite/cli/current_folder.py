"""Modules of the current folder, for a config's page and the plug-ins that are named, only.

On Python's path, the folder would also answer the libraries. jax, orbax and others look for dozens
of modules that are not installed, and the folder may be a stranger's.
"""

import importlib.machinery
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType

from flaxformer_lite import registry

PAGE = "config_config"  # as ml_collections names the module of a page


class Finder:
    """Finds a module in the current folder if a page, a plug-in or the registry imports it.

    Python asks it last, after all that is installed. What it has found may import its neighbors.
    """

    def __init__(self) -> None:
        self._trusted = {PAGE, registry.__name__}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns where a module lies, or None."""
        if path is not None:  # of a package, which knows its own files
            return None
        importer = _importer()
        if importer not in self._trusted and importer.partition(".")[0] not in self._trusted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [""])
        if spec is not None:
            self._trusted.add(name)
        return spec


def import_from_here() -> None:
    """Lets the page and the plug-ins that a command names be modules of the current folder."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())


def _importer() -> str:
    """Returns the name of the module whose code imports another."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""
