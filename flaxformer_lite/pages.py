"""Finds the config pages that are shipped with the package, by name.

A page is configs/NAME.py in the repository, and is installed as flaxformer_lite/configs/NAME.py.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

from flaxformer_lite import registry
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.files.home import expand_home


def folder() -> Path:
    """Returns the folder of the pages: inside the package, or beside it in a checkout."""
    package = Path(__file__).parent
    for path in (package / "configs", package.parent / "configs"):
        if path.is_dir():
            return path
    return package


def names() -> list[str]:
    """Returns the sorted names of the pages."""
    return sorted(path.stem for path in folder().glob("*.py") if not path.stem.startswith("_"))


def locate(value: str) -> str:
    """Resolves a page, or the file of one, to the path of a file.

    Args:
      value: `NAME`, `NAME:ARGUMENT` or `FILE`. A file's path has a slash or ends in .py, so that a
        stranger's folder cannot put its code in the place of a page.

    Raises:
      ConfigError: there is no such file or page; the message suggests the nearest page.
    """
    name, colon, argument = value.partition(":")
    known = names()
    kind = "page"
    if re.search(r"[/\\]|\.py$", name):
        kind = "file"
        file = expand_home(name)
        if file.is_file():
            return f"{file}{colon}{argument}"
    elif name in known:
        return f"{folder() / name}.py{colon}{argument}"
    raise ConfigError(
        f"--config={value}: no such {kind}{registry.did_you_mean(Path(name).stem, known)}; the"
        f" pages are {', '.join(known)}, and a file is named with a slash, as ./FILE, or ends in"
        " .py."
    )


def get_config(name: str, *arguments: str) -> Any:
    """Returns the ConfigDict of a page, for pages that are variations of it.

    >>> get_config("gpt2_tiny").model.d_model
    128
    """
    spec = importlib.util.spec_from_file_location(
        f"flaxformer_lite.configs.{name}", folder() / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None, "a file's"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*arguments)
