"""Converts a ConfigDict to frozen records, checking every value, and back."""

import dataclasses
import functools
import hashlib
import json
import numbers
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from ml_collections import ConfigDict, config_dict

from flaxformer_lite import registry
from flaxformer_lite.config.experiment import ExperimentConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.config.rules import (
    MAX_FLOAT32,
    ConfigError,
    PluginError,
    Sections,
    check_fields,
    declared_fields,
    format_value,
    names_plugin,
    plugin_name,
    strip_annotation,
)

T = TypeVar("T")
# Names of fields in pages and runs of earlier versions.
RENAMED = {"bias_rate": "router_bias_update_rate", "beside": "extra_branch"}
OUTSIDE = re.compile(r"[\w.]+:[\w.]+")  # the form of a plug-in's name outside the package


def from_config_dict(
    cls: type[T], values: Any, where: str = "config", *, allow_plugins: registry.Allowed = True
) -> T:
    """Builds the frozen dataclass `cls` from a ConfigDict (or any mapping), checking every value.

    Args:
      cls: a dataclass of this folder or of a plug-in.
      values: nested mapping; the mapping of a plug-in holds its file name under `name`.
      where: the path of the values, for errors.
      allow_plugins: the plug-ins outside the package that may be imported. If the values come from
        a file, do not allow all; see `registry.check_allowed`.

    Raises:
      PluginError: the values name a plug-in that is not allowed; it was not imported.
      ConfigError: an unknown key (with the nearest known one), a wrong type, a missing field, or a
        broken rule.
    """
    if not hasattr(values, "items"):
        raise ConfigError(
            f"{where}={format_value(values)}: must be a section ({cls.__name__}), not"
            f" {type(values).__name__}."
        )
    hints = declared_fields(cls)
    values = {_new_name(key, hints, values): value for key, value in values.items()}
    for key in values:
        if key not in hints:
            near = registry.did_you_mean(str(key), list(hints))
            if not isinstance(key, str) or not key.isprintable():
                key = format_value(key)
            raise ConfigError(
                f"{where}.{key}: no such field{near}; {cls.__name__} has"
                f" {', '.join(hints) or 'none'}."
            )
    built = {}
    for f in dataclasses.fields(cast(Any, cls)):
        if f.name in values and f.name in hints:
            path = f"{where}.{f.name}"
            built[f.name] = _build(f, hints[f.name], values[f.name], path, allow_plugins)
        elif (
            f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ):
            raise ConfigError(f"{where}.{f.name}: missing; {cls.__name__} needs it.")
    try:
        check_fields(cls, built)  # a plug-in need not call it in __post_init__, as our records do
        return cls(**built)
    except ValueError as error:
        raise ConfigError(_with_path(str(error), where.partition(".")[2], list(hints))) from None


def _new_name(key: str, hints: Mapping[str, object], values: Mapping[str, object]) -> str:
    """Returns the name of a field that pages and runs of before may call by an older one."""
    new = RENAMED.get(key, key)
    if new in hints and new not in values:
        return new
    return key


def _with_path(message: str, path: str, fields: list[str]) -> str:
    """Rewrites each `field=` in a message as `path.field=`, the way the user writes it."""
    if not path or message.startswith((f"{path}=", f"{path}.")):
        return message
    if not fields:
        return f"{path}: {message}"
    # Not behind a dot, where a name has its path already.
    named = re.sub(rf"(?<![\w.])({'|'.join(fields)})=", rf"{path}.\1=", message)
    if named == message:
        return f"{path}: {message}"
    return named


def to_config_dict(cfg: object) -> ConfigDict:
    """Converts a record back to a ConfigDict whose fields the command line can override."""
    out = ConfigDict()
    plugins = plugin_fields(type(cfg))
    for name, hint in declared_fields(type(cfg)).items():
        value = getattr(cfg, name)
        if name in plugins and value is None:
            out[name] = ConfigDict({"name": ""})
        elif name in plugins:
            out[name] = ConfigDict({"name": plugin_name(value), **to_config_dict(value)})
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            out[name] = tuple(to_config_dict(item).to_dict() for item in value)
        elif dataclasses.is_dataclass(value):
            out[name] = to_config_dict(value)
        elif isinstance(value, Sections):
            out[name] = ConfigDict({key: to_config_dict(item) for key, item in value.items()})
        elif value is None:
            out[name] = _placeholder(hint)
        else:
            out[name] = value
    return out


def allowed_plugins(cfg: ExperimentConfig) -> registry.Allowed:
    """Returns the plug-ins that the directories read by an experiment may name.

    These are all plug-ins if it allows plug-ins, and otherwise those that it names itself.
    """
    return cfg.allow_plugins or outside_plugins(cfg)


def outside_plugins(cfg: ExperimentConfig) -> frozenset[str]:
    """Returns the names of the plug-ins outside the package that an experiment uses."""
    return _outside(to_config_dict(cfg))


def page_plugins(values: ConfigDict) -> frozenset[str]:
    """Returns the names of the outside plug-ins that a page or its flags name.

    Each is returned as it is written, and as a run stores it.
    """
    names = _outside(values)
    for path, folder in plugin_fields(ExperimentConfig).items():
        name = _at(values, f"{path}.name")
        if name in names:
            names |= {registry.name_of(_plugin_class(folder, name, f"config.{path}"))}
    return names


def _at(values: Any, path: str) -> Any:
    """Returns the value at a dotted path, or None if there is none."""
    for part in path.split("."):
        if not hasattr(values, "get"):
            return None
        values = values.get(part)
    return values


def _outside(values: object) -> frozenset[str]:
    """Returns the texts in nested values that have the form of an outside plug-in's name."""
    if hasattr(values, "items"):
        values = [value for _, value in values.items()]
    if isinstance(values, str) and OUTSIDE.fullmatch(values):
        return frozenset([values])
    if isinstance(values, list | tuple):
        return frozenset().union(*map(_outside, values))
    return frozenset()


def plugin_fields(cls: type) -> Mapping[str, str]:
    """Maps the path of each plug-in field in a record to its folder.

    For example, `{"model.position": "positions"}`.
    """
    return _plugin_fields(cls)


@functools.cache  # apart, for mypy, as `rules._declared`
def _plugin_fields(cls: type) -> Mapping[str, str]:
    folders: dict[str, str] = {}
    hints = declared_fields(cls)
    for f in dataclasses.fields(cls):
        if "plugin" in f.metadata:
            folders[f.name] = f.metadata["plugin"]
        elif dataclasses.is_dataclass(hints.get(f.name)):
            inner = _plugin_fields(hints[f.name])
            folders |= {f"{f.name}.{name}": folder for name, folder in inner.items()}
    return folders


def choose_plugins(values: ConfigDict, names: dict[str, str]) -> None:
    """Fills in plug-ins as a config page would.

    Each node gets all options of its plug-in, with their defaults.

    Args:
      values: changed in place.
      names: path -> the plug-in to use instead of the page's; the page's options for it are
        dropped.

    Raises:
      ConfigError: no such plug-in.
    """
    for path, folder in plugin_fields(ExperimentConfig).items():
        above, _, last = path.rpartition(".")
        parent = _at(values, above) if above else values
        node = _at(values, path)
        if not isinstance(node, ConfigDict) or "name" not in node:
            continue  # from_config_dict reports what is wrong with it
        name = names.get(path, node.name)
        if not name:
            continue
        kept = {}
        if name == node.name:
            # Values read through a reference would no longer follow what it refers to.
            kept = dict(node.items(preserve_field_references=True))
        plugin = _plugin_class(folder, name, f"config.{path}")
        hints = declared_fields(plugin)
        kept = {_new_name(key, hints, kept): value for key, value in kept.items()}
        defaults = _defaults(plugin)
        with parent.unlocked():
            parent[last] = ConfigDict({"name": name, **defaults, **kept})


def add_sections(values: ConfigDict, given: Iterable[str]) -> None:
    """Adds the named records that the command line sets and the page lacks, with their defaults.

    A source of a mixture is such a record.

    Args:
      values: changed in place.
      given: paths of fields.

    Raises:
      ConfigError: a name that ConfigDict has a method of.
    """
    for path in given:
        match = re.fullmatch(r"data\.mixture\.(\w+)\.\w+", path)
        if not match:
            continue
        if hasattr(ConfigDict, match[1]):
            raise ConfigError(
                f"data.mixture.{match[1]}: no name for a source, as configs use it; choose another."
            )
        sources = _at(values, "data.mixture")
        if isinstance(sources, ConfigDict) and match[1] not in sources:
            with sources.unlocked():
                sources[match[1]] = ConfigDict(_defaults(SourceConfig))


def fingerprint(cfg: object) -> str:
    """Hashes a whole config, or the plain values of one.

    The hash is stored with the run and compared on resume.
    """
    if not isinstance(cfg, dict):
        cfg = to_config_dict(cfg).to_dict()
    text = json.dumps(cfg, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(
    f: dataclasses.Field, hint: object, value: object, where: str, allowed: registry.Allowed
) -> Any:
    """Turns sections into records, lists into tuples, and integers into floats, as declared."""
    kind = strip_annotation(hint)
    if "plugin" in f.metadata:
        return _build_plugin(f, value, where, allowed)
    if names_plugin(hint):
        _check_allowed(value, where, allowed)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if isinstance(value, kind) or (value is None and kind is not hint):
            return value
        return from_config_dict(kind, value, where, allow_plugins=allowed)
    if typing.get_origin(kind) is dict and hasattr(value, "items"):
        inner = typing.get_args(kind)[1]
        records = {}
        for name, item in value.items():
            if not isinstance(item, inner):
                item = from_config_dict(inner, item, f"{where}.{name}", allow_plugins=allowed)
            records[name] = item
        return Sections(records)
    if typing.get_origin(kind) is tuple and isinstance(value, (tuple, list)):
        inner = typing.get_args(kind)[0]
        items = []
        for i, item in enumerate(value):
            items.append(_build(f, inner, item, f"{where}[{i}]", allowed))
        return tuple(items)
    # A bool is an Integral, and would pass as 0 or 1.
    if not isinstance(value, bool):  # numpy's numbers become Python's
        if kind is int and isinstance(value, numbers.Integral):
            return int(value)
        if (
            kind is float
            and isinstance(value, numbers.Real)
            and abs(cast(float, value)) < MAX_FLOAT32
        ):
            return float(value)
    return value


def _build_plugin(f: dataclasses.Field, value: Any, where: str, allowed: registry.Allowed) -> Any:
    folder = f.metadata["plugin"]
    if dataclasses.is_dataclass(value) or (value is None and f.default is None):
        return value
    if not hasattr(value, "items"):
        raise ConfigError(
            f"{where}={format_value(value)}: must be a section with a name, not"
            f" {type(value).__name__}; set {where}.name."
        )
    options = dict(value)
    if options == {"name": ""} and f.default is None:
        return None
    if "name" not in options:
        raise ConfigError(f"{where}.name: missing; one of {', '.join(registry.available(folder))}.")
    name = options.pop("name")
    # Before the class is looked up, which imports its module.
    _check_allowed(name, f"{where}.name", allowed)
    cls = _plugin_class(folder, name, where)
    return from_config_dict(cls, options, where, allow_plugins=allowed)


def _check_allowed(value: object, where: str, allowed: registry.Allowed) -> None:
    """Checks each text of a field that names plug-ins, before anything imports them."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_allowed(item, where, allowed)
    if isinstance(value, str):
        try:
            registry.check_allowed(value, allowed)
        except ValueError as error:
            raise PluginError(f"{where}: {error}") from None


def _plugin_class(folder: str, name: object, where: str) -> type:
    if not isinstance(name, str):
        raise ConfigError(
            f"{where}.name={format_value(name)}: must be one of"
            f" {', '.join(registry.available(folder))}."
        )
    try:
        return registry.resolve_class(folder, name)
    except ValueError as error:
        raise ConfigError(f"{where}.name: {error}") from None


def _defaults(cls: type) -> dict[str, Any]:
    """Returns a plug-in's options as a page holds them, with placeholders for missing defaults."""
    hints = declared_fields(cls)
    out = {}
    for f in dataclasses.fields(cls):
        if f.name not in hints:
            continue
        default: Any = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        if default is None or default is dataclasses.MISSING:
            default = _placeholder(hints[f.name])
        elif dataclasses.is_dataclass(default):
            default = to_config_dict(default)
        out[f.name] = default
    return out


def _placeholder(hint: object) -> Any:
    hint = strip_annotation(hint)
    return config_dict.placeholder(typing.get_origin(hint) or hint)
