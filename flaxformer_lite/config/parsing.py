"""The one place where a ConfigDict is checked and turned into frozen records, and the way back."""

import dataclasses
import hashlib
import json
import re
import types
import typing
from typing import Any, TypeVar, cast

from ml_collections import ConfigDict, config_dict

from flaxformer_lite import registry
from flaxformer_lite.config.experiment import ExperimentConfig
from flaxformer_lite.config.rules import ConfigError, plugin_name

T = TypeVar("T")


def from_config_dict(cls: type[T], values: Any, where: str = "config") -> T:
    """Builds the frozen dataclass `cls` from a ConfigDict (or any mapping), checking every value.

    Args:
      cls: a dataclass of this file or of a plug-in.
      values: nested mapping; the mapping of a plug-in holds its file name under `name`.
      where: the path so far, named in errors.

    Raises:
      ConfigError: an unknown key (with the nearest known one), a wrong type, a missing field, or a broken rule.
    """
    return _from_mapping(cls, values, where, "")


def _from_mapping(cls: type[T], values: Any, where: str, path: str) -> T:
    """Implements `from_config_dict`; `path` is the dotted name of the section, to be added to errors."""
    if not hasattr(values, "items"):
        raise ConfigError(
            f"{where}={values!r}: must be a section of fields ({cls.__name__}), not {type(values).__name__}."
        )
    fields = {f.name: f for f in dataclasses.fields(cast(Any, cls)) if f.init and "internal" not in f.metadata}
    hints = typing.get_type_hints(cls)
    unknown = [key for key in values if key not in fields]
    if unknown:
        near = registry.nearest(unknown[0], list(fields))
        raise ConfigError(
            f"{where}.{unknown[0]}: no such field{near}; {cls.__name__} has {', '.join(fields) or 'none'}."
        )
    built = {}
    for name, f in fields.items():
        if name in values:
            built[name] = _build(f, hints[name], values[name], f"{where}.{name}", f"{path}.{name}".lstrip("."))
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name}: missing; {cls.__name__} needs it.")
    try:
        return cls(**built)
    except ValueError as error:
        raise ConfigError(_with_path(str(error), path, list(fields))) from None


def _with_path(message: str, path: str, fields: list[str]) -> str:
    """Rewrites each `field=` in a message as `path.field=`, the way the user writes it."""
    if not path or message.startswith((f"{path}=", f"{path}.")):
        return message
    named = re.sub(rf"(?<![\w.])({'|'.join(fields) or '$^'})=", rf"{path}.\1=", message)
    return named if named != message else f"{path}: {message}"


def to_config_dict(cfg: Any) -> ConfigDict:
    """Converts a record back to a ConfigDict, in which the command line can override every field."""
    out = ConfigDict()
    hints = typing.get_type_hints(type(cfg))
    for f in dataclasses.fields(cfg):
        value = getattr(cfg, f.name)
        if "internal" in f.metadata:
            continue
        if "plugin" in f.metadata:
            own = {} if value is None else to_config_dict(value)
            out[f.name] = ConfigDict({"name": "" if value is None else plugin_name(value), **own})
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            out[f.name] = tuple(to_config_dict(item).to_dict() for item in value)
        elif dataclasses.is_dataclass(value):
            out[f.name] = to_config_dict(value)
        elif value is None:
            out[f.name] = _placeholder(hints[f.name])
        else:
            out[f.name] = value
    return out


def plugin_fields(cls: type, prefix: str = "") -> dict[str, str]:
    """Maps the path of each plug-in field in a record to its folder, as in `{"model.position": "positions"}`."""
    found, hints = {}, typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if "plugin" in f.metadata:
            found[prefix + f.name] = f.metadata["plugin"]
        elif dataclasses.is_dataclass(hints[f.name]):
            found |= plugin_fields(hints[f.name], f"{prefix}{f.name}.")
    return found


def choose_plugins(values: ConfigDict, names: dict[str, str]) -> None:
    """Fills in plug-ins as a config page would: each node gets all options of its plug-in, with their defaults.

    Args:
      values: changed in place.
      names: path -> the plug-in to use instead of the page's; the page's options for it are dropped.

    Raises:
      ConfigError: no such plug-in.
    """
    for path, folder in plugin_fields(ExperimentConfig).items():
        *above, last = path.split(".")
        parent = values
        for part in above:
            parent = parent.get(part) if isinstance(parent, ConfigDict) else None
        node = parent.get(last) if isinstance(parent, ConfigDict) else None
        if not isinstance(node, ConfigDict) or "name" not in node:
            continue  # from_config_dict reports what is wrong with it
        name = names.get(path, node.name)
        if not name:
            continue
        kept = dict(node.items(preserve_field_references=True)) if name == node.name else {}
        defaults = _defaults(_plugin_class(folder, name, f"config.{path}"))
        with parent.unlocked():
            parent[last] = ConfigDict({"name": name, **defaults, **kept})


def fingerprint(cfg: Any) -> str:
    """Hashes a whole config, or the plain values of one; the hash is stored with the run and compared on resume."""
    text = json.dumps(cfg if isinstance(cfg, dict) else to_config_dict(cfg).to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(f: dataclasses.Field, hint: Any, value: Any, where: str, path: str) -> Any:
    if "plugin" in f.metadata:
        if dataclasses.is_dataclass(value) or (value is None and f.default is None):
            return value
        if not hasattr(value, "items"):
            raise ConfigError(f"{where}={value!r}: must be a section with a name, not {type(value).__name__}; set"
                              f" {where}.name.")  # fmt: skip
        options = dict(value)
        if options == {"name": ""} and f.default is None:
            return None
        if "name" not in options:
            raise ConfigError(f"{where}.name: missing; one of {', '.join(registry.available(f.metadata['plugin']))}.")
        return _from_mapping(_plugin_class(f.metadata["plugin"], options.pop("name"), where), options, where, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _from_mapping(hint, value, where, path)
    if value is None and isinstance(hint, types.UnionType):
        return None
    hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{where}={value!r}: must be a tuple, not {type(value).__name__}.")
        kind = typing.get_args(hint)[0]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return tuple(
                item if isinstance(item, kind) else from_config_dict(kind, item, f"{where}[{i}]")
                for i, item in enumerate(value)
            )
        return tuple(_scalar(kind, item, where) for item in value)
    return _scalar(hint, value, where)


def _plugin_class(folder: str, name: Any, where: str) -> type:
    try:
        return registry.resolve_class(folder, str(name))
    except ValueError as error:
        raise ConfigError(f"{where}.name: {error}") from None


def _defaults(cls: type) -> dict[str, Any]:
    """Returns a plug-in's options as a page holds them, with a placeholder for each that has no default."""
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        if "internal" in f.metadata:
            continue
        made = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if made is None or made is dataclasses.MISSING:
            made = _placeholder(hints[f.name])
        out[f.name] = to_config_dict(made) if dataclasses.is_dataclass(made) else made
    return out


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where}={value!r}: must be {hint.__name__}, not {type(value).__name__}.")
    return value


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(h for h in typing.get_args(hint) if h is not types.NoneType)
    return hint


def _placeholder(hint: Any) -> Any:
    hint = _without_none(hint)
    return config_dict.placeholder(typing.get_origin(hint) or hint)
