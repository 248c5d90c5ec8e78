"""Checks for config records, and the error they raise."""

import re
from dataclasses import field
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
    value = getattr(cfg, name)
    for item in (value,) if isinstance(value, str) else value:
        if item not in choices:
            raise ConfigError(
                f"{name}={value!r}: no {item!r}{registry.nearest(item, list(choices))}; choose from"
                f" {', '.join(choices)}."
            )


def local_path(name: str, value: str) -> str:
    """Returns the path, refusing the address of a bucket, which would become a local folder named `gs:`."""
    if re.match(r"\w+://", value):
        raise ConfigError(f"{name}={value}: not a local path, and only local files are read and written; mount the bucket"
                          f" (gcsfuse, mountpoint-s3) or copy it, and pass that folder.")  # fmt: skip
    return value
