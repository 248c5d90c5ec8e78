"""Checks for config records, and the error they raise."""

import re
from dataclasses import field, is_dataclass
from typing import Any

from flaxformer_lite import registry


class ConfigError(ValueError):
    """A config that cannot work; the message names the field, the rule and the way out."""


def plugin(folder: str, default: str) -> Any:
    """Declares a field that holds a plug-in's own record, chosen by its `name` key."""
    return field(default_factory=lambda: registry.resolve_class(folder, default)(), metadata={"plugin": folder})


def optional_plugin(folder: str) -> Any:
    """Declares a field that holds a plug-in's own record, or None, written as an empty `name`."""
    return field(default=None, metadata={"plugin": folder})


def resolved(cfg: Any, name: str, folder: str) -> Any:
    """Resolves the plug-in that a field names.

    Raises:
      ConfigError: there is no such plug-in.
    """
    try:
        return registry.resolve(folder, getattr(cfg, name))
    except ValueError as error:
        raise ConfigError(f"{name}={getattr(cfg, name)!r}: {error}") from None


def plugin_name(value: Any) -> str:
    """Returns the name of a plug-in's record: its file name, or `module:Class` if it lives outside the package."""
    return registry.name_of(type(value))


def positive(cfg: Any, *names: str) -> None:
    for name in names:
        if getattr(cfg, name) <= 0:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must be positive.")


def not_negative(cfg: Any, *names: str) -> None:
    for name in names:
        if getattr(cfg, name) < 0:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must not be negative.")


def among(cfg: Any, name: str, choices: tuple[str, ...]) -> None:
    """Checks a field that holds one name."""
    value = getattr(cfg, name)
    if not isinstance(value, str):
        raise ConfigError(f"{name}={_shown(value)}: must be one name out of {', '.join(choices)}.")
    _named(name, value, value, choices)


def all_among(cfg: Any, name: str, choices: tuple[str, ...]) -> None:
    """Checks a field that holds a tuple of names."""
    value = getattr(cfg, name)
    if not isinstance(value, tuple):
        meant = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else None
        way_out = f"such as {choices[:1]!r}" if meant is None else f"{meant!r}"
        raise ConfigError(f"{name}={value!r}: must be a tuple of names, {way_out}.")
    for item in value:
        _named(name, value, item, choices)


def instance(cfg: Any, name: str, cls: type, example: str = "", *, optional: bool = False) -> None:
    """Checks a field that holds a record.

    Args:
      cfg: the record with the field.
      name: the field.
      cls: the class that the value must be derived from.
      example: a class that fits, to be named in the error.
      optional: whether None is a value.
    """
    value = getattr(cfg, name)
    if not (isinstance(value, cls) or (optional and value is None)):
        such = f", such as {example}" if example else ""
        raise ConfigError(
            f"{name}={_shown(value)}: must be a record of type {cls.__name__}{such}{' or None' * optional}."
        )


def _named(name: str, value: Any, item: Any, choices: tuple[str, ...]) -> None:
    if item not in choices:
        near = registry.nearest(str(item), list(choices))
        raise ConfigError(f"{name}={value!r}: no {item!r}{near}; choose from {', '.join(choices)}.")


def _shown(value: Any) -> str:
    """Writes a value in a message: a class as its name, a record without its fields."""
    if isinstance(value, type):
        return f"{value.__name__} (the class, without its parentheses)"
    return f"{type(value).__name__}(...)" if is_dataclass(value) else repr(value)


def local_path(name: str, value: str) -> str:
    """Returns the path, refusing the address of a bucket, which would become a local folder named `gs:`."""
    if re.match(r"\w+://", value):
        raise ConfigError(f"{name}={value}: not a local path, and only local files are read and written; mount the bucket"
                          f" (gcsfuse, mountpoint-s3) or copy it, and pass that folder.")  # fmt: skip
    return value
