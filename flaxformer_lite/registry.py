"""Plug-ins by file name: the folder is the registry and the file name is the key.

`resolve("attentions", "blockwise")` imports `flaxformer_lite/attentions/blockwise.py`. Nothing registers itself: adding a
file adds the name, deleting the file deletes it.
"""

import difflib
import importlib
import pkgutil
from types import ModuleType


def available(folder: str) -> list[str]:
    """Names of the plug-ins in `flaxformer_lite/<folder>`: all its files but those that its `SHARED` names."""
    package = importlib.import_module(f"flaxformer_lite.{folder}")
    return sorted(
        m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and m.name not in package.SHARED
    )


def resolve(folder: str, name: str) -> ModuleType:
    """The module `flaxformer_lite/<folder>/<name>.py`.

    Raises:
      ValueError: no such file; the message offers the nearest name and lists all.
    """
    choices = available(folder)
    if name not in choices:
        raise ValueError(f"{folder}: no {name!r}{nearest(name, choices)}; there are {', '.join(choices)}.")
    return importlib.import_module(f"flaxformer_lite.{folder}.{name}")


def resolve_class(folder: str, name: str) -> type:
    """The class a plug-in file is about: `t5_buckets.py` holds `T5Buckets`; or any, as `package.module:Class`.

    Raises:
      ValueError: no such file, module or class.
    """
    module, colon, own = name.partition(":")
    if colon:
        try:
            return getattr(importlib.import_module(module), own)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{folder}: {name!r} cannot be imported ({error}).") from None
    return getattr(resolve(folder, name), "".join(part.capitalize() for part in name.split("_")))


def nearest(name: str, choices: list[str]) -> str:
    """`'; did you mean X?'` where a choice is close to `name`, else nothing."""
    close = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
