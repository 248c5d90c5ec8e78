"""Plug-ins by file name: the folder is the registry and the file name is the key.

`resolve("attentions", "blockwise")` imports `flaxformer_lite/nn/attentions/blockwise.py`. Nothing
registers itself: adding a file adds the name, deleting the file deletes it. Families that differ
in a few values are rows of a table instead, as `models.ROWS` says. A package of contrib
holds plug-ins in a folder named after their kind, such as `contrib/t5x/readers`. A plug-in may also
live anywhere else, as `package.module:Class`.
"""

import difflib
import functools
import hashlib
import importlib
import inspect
import pkgutil
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

PACKAGE = __name__.rpartition(".")[0]
# The folders of the core that hold the plug-ins of a kind; contrib may hold more of each.
FOLDERS = {
    "models": ("models",),
    "attentions": ("nn.attentions",),
    "context_attentions": ("nn.attentions.context_parallel",),
    "positions": ("nn.positions",),
    "mixers": ("nn.mixers",),
    "feed_forwards": ("nn.feed_forwards",),
    "adapters": ("nn.adapters",),
    "objectives": ("objectives.text", "objectives.tables"),
    "rewards": (),
    "optimizers": ("training.optimizers",),
    "trackers": ("runs.trackers",),
    "readers": (),
    "tokenizers": (),
    "tokenizer_files": (),
    "commands": (),
}
BASES = {  # the base class of each folder's plug-ins
    "objectives": "objectives.base:Objective",
    "positions": "nn.positions.encoding:Encoding",
    "mixers": "config.parts:MixerConfig",
    "feed_forwards": "config.parts:FeedForwardConfig",
    "adapters": "config.parts:AdapterConfig",
    "models": "models.skeletons.family_model:FamilyModel",
    "trackers": "runs.trackers.base:Tracker",
}
# Names in configs of earlier versions -> what they are called now.
RENAMED = {("mixers", "attentive"): "recurrent_attention"}
# The attribute that the modules of the other folders must have.
TAKEN = {
    "models": "Model",
    "attentions": "attend",
    "optimizers": "make",
    "trackers": "Tracker",
    "rewards": "score",
}
# How many arguments by position those of them that are functions take.
ARGUMENTS = {"attentions": 4, "optimizers": 1, "rewards": 1}
# The plug-ins outside the package that a file may name: all (True), none, or those of these names.
Allowed = bool | Collection[str]


def available(folder: str) -> list[str]:
    """Lists the plug-ins of a kind: the files of its folders, except those in their `SHARED`."""
    return sorted(_modules(folder))


@functools.cache  # every config that is read asks, and each folder has up to a hundred files
def _modules(folder: str) -> Mapping[str, str]:
    """Maps each plug-in of a kind to its module, or to `module:row`, without importing it."""
    modules: dict[str, str] = {}
    for place in FOLDERS[folder]:
        package = importlib.import_module(f"{PACKAGE}.{place}")
        for file in pkgutil.iter_modules(package.__path__):
            if not file.ispkg and file.name not in package.SHARED:
                modules[file.name] = f"{package.__name__}.{file.name}"
        for row, table in getattr(package, "ROWS", {}).items():
            modules[row] = f"{package.__name__}.{table}:{row}"
    for path in sorted((Path(__file__).parent / "contrib").glob(f"*/{folder}/*.py")):
        if path.stem != "__init__":
            modules[path.stem] = f"{PACKAGE}.contrib.{path.parents[1].name}.{folder}.{path.stem}"
    return modules


def resolve(folder: str, name: str) -> Any:
    """Imports a plug-in module.

    Args:
      folder: the kind of plug-in, a key of FOLDERS.
      name: the name of a file, or `module:attribute` for a plug-in outside the package; the
        attribute replaces what TAKEN names, such as the `make` of an optimizer.

    Raises:
      ValueError: there is no such file, module or attribute; the message suggests the nearest name
        and lists all. Or the attribute is not of the kind.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"{folder}: {name!r} is no name; choose from {', '.join(_modules(folder))}."
        )
    if ":" in name:
        module, attribute = _outside(name)
        if folder in ARGUMENTS:
            _check_function(folder, name, attribute)
        else:
            _check_derived(folder, name, attribute)
        return types.SimpleNamespace(**vars(module) | {TAKEN[folder]: attribute})
    name = RENAMED.get((folder, name), name)
    modules = _modules(folder)
    if name not in modules:
        near = did_you_mean(name, sorted(modules))
        raise ValueError(
            f"{folder}: no {name[:80]!r}{near}; choose from {', '.join(sorted(modules))}, or your"
            " own as module:Name."
        )
    file, _, row = modules[name].partition(":")
    plugin = importlib.import_module(file)
    if row:
        return plugin.family(row)
    return plugin


def resolve_class(folder: str, name: str) -> type:
    """Imports a plug-in class.

    Args:
      folder: the kind of plug-in, a key of BASES.
      name: the name of a file, whose class is named after it: `t5_buckets.py` holds `T5Buckets`, or
        `attention.py` the record `AttentionConfig` of a module; or `module:Class`.

    Raises:
      ValueError: there is no such file, module or class, or the class is not a plug-in of this
        folder.
    """
    cls = _outside(name)[1] if ":" in name else _inside(folder, name)
    _check_derived(folder, name, cls)
    if "__dataclass_params__" not in vars(cls):
        raise ValueError(
            f"{name!r} is not a dataclass; write @dataclass(frozen=True, kw_only=True) above it."
        )
    if inspect.isabstract(cls):
        raise ValueError(f"{name!r} lacks {', '.join(sorted(vars(cls)['__abstractmethods__']))}.")
    return cls


def check_allowed(name: str, allowed: Allowed) -> None:
    """Rejects a plug-in outside the package that a file names, unless the caller allows it.

    Importing its module runs code. A name from a page, the command line or Python needs no
    permission; one from a file that may be untrusted does.

    Raises:
      ValueError: the plug-in is not allowed; the message says how to allow it.
    """
    if ":" not in name or allowed is True or (allowed and name in allowed):
        return
    raise ValueError(
        f"names the plug-in {name[:80]!r}, code outside of this package that would be imported and"
        " run; if you trust the directory, add --allow-plugins (allow_plugins=True in Python)."
    )


def base_of(folder: str) -> type:
    """Imports the base class of a folder's plug-ins."""
    file, _, name = BASES[folder].partition(":")
    return getattr(importlib.import_module(f"{PACKAGE}.{file}"), name)


def name_of(cls: type) -> str:
    """Returns the name of a class for `resolve_class`: that of its file, or `module:Class`."""
    package, _, file = cls.__module__.rpartition(".")
    folders = [f"{PACKAGE}.{place}" for places in FOLDERS.values() for place in places]
    contrib, _, kind = package.rpartition(".")
    inside = package in folders or (contrib.startswith(f"{PACKAGE}.contrib.") and kind in FOLDERS)
    if inside and cls.__name__.removesuffix("Config") == _class_name(file):
        return file
    return f"{cls.__module__}:{cls.__qualname__}"


def code_of(cls: type) -> tuple[str, ...]:
    """Hashes the file of a class outside this package, for the keys of caches; () for others."""
    if ":" not in name_of(cls) or cls.__module__ == "__main__":  # a notebook has no file
        return ()
    return (hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()[:16],)


def _check_derived(folder: str, name: str, cls: object) -> None:
    base = base_of(folder)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(
            f"{name!r} is not derived from {base.__module__}.{base.__name__}, the base of all"
            f" {folder}."
        )


def _check_function(folder: str, name: str, function: Any) -> None:
    count = ARGUMENTS[folder]
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:  # some functions in C have no signature
        return
    except TypeError:
        raise ValueError(
            f"{name!r} does not take {count} argument{'s' * (count > 1)} by position, as the"
            f" `{TAKEN[folder]}` of all {folder} does."
        ) from None


def did_you_mean(name: str, choices: list[str], *, before: str = "") -> str:
    """Returns "; did you mean 'X'?" if a choice is close to `name`, else an empty string.

    Args:
      before: what is shown before the choice, such as the dashes of a flag.
    """
    close = difflib.get_close_matches(name[:100], choices, n=1)
    return f"; did you mean {before + close[0]!r}?" if close else ""


def _inside(folder: str, name: str) -> Any:
    name = RENAMED.get((folder, name), name)
    module = resolve(folder, name)
    base = _class_name(name)
    for attribute in (f"{base}Config", base):
        if hasattr(module, attribute):
            return getattr(module, attribute)
    raise ValueError(f"{folder}/{name}.py holds neither {base}Config nor {base}; rename its class.")


def _class_name(file: str) -> str:
    return "".join(part.capitalize() for part in file.split("_"))


def _outside(name: str) -> tuple[types.ModuleType, Any]:
    """Imports the module and the attribute of `module:attribute`.

    An error that the module itself raises propagates.
    """
    where, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in f"{where}.{attribute}".split(".")):
        raise ValueError(f"{name!r}: name a plug-in outside the package as package.module:Name.")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if not f"{where}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{name!r}: no module {error.name!r} in the current folder or on Python's path."
        ) from None
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ValueError(
                f"{name!r}: {where} has no {part!r}{did_you_mean(part, list(vars(value))) or '.'}"
            )
        value = getattr(value, part)
    return module, value
