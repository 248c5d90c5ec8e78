"""The help page on a config's fields: type, value, and the comment beside each field in its dataclass."""

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, from_config_dict, plugin_name

COLUMN, WIDTH = 50, 120
CHOICES = re.compile(r"'\?'.*choose from (.+?)\.$", re.S)


def describe(config: ConfigDict) -> str:
    """Describes each field in one or more lines, by section, with its value in this config.

    Raises:
      ConfigError: the config is invalid.
    """
    return "\n".join(_section(from_config_dict(ExperimentConfig, config), "config", ""))


def _section(cfg: Any, path: str, folder: str) -> Iterator[str]:
    yield f"{path}:"
    if folder:
        yield _line(
            f"{path}.name", plugin_name(cfg) if cfg else "", f"str: {_one_of(', '.join(registry.available(folder)))}"
        )
    if cfg is None:  # an optional plug-in that is not chosen
        return
    fields = [f for f in dataclasses.fields(cfg) if f.init and "internal" not in f.metadata]
    hints, helps = typing.get_type_hints(type(cfg)), comments(type(cfg))
    sections = [f for f in fields if "plugin" in f.metadata or dataclasses.is_dataclass(getattr(cfg, f.name))]
    for f in fields:
        if f not in sections:
            about = filter(None, (helps.get(f.name), _one_of(choices(cfg, f.name, hints[f.name]))))
            kind = _type(hints[f.name])
            yield _line(f"{path}.{f.name}", getattr(cfg, f.name), ": ".join(filter(None, (kind, "; ".join(about)))))
    for f in sections:
        yield ""
        yield from _section(getattr(cfg, f.name), f"{path}.{f.name}", f.metadata.get("plugin", ""))


def comments(cls: type) -> dict[str, str]:
    """Returns the comment at the end of each field's line, from the source of a dataclass and its bases."""
    found = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class defined at a prompt has no source
            continue
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        lines = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                said = lines.get(node.end_lineno or 0, "")
                found[node.target.id] = "" if said.startswith("noqa") else said
    return found


def choices(cfg: Any, name: str, hint: Any) -> str:
    """Lists the names that a field accepts, from the error that any other name raises."""
    wrong = {str: "?", tuple[str, ...]: ("?",)}.get(hint)
    try:
        dataclasses.replace(cfg, **{name: wrong} if wrong else {})
    except ValueError as error:
        now, found = getattr(cfg, name), CHOICES.search(str(error))
        names = found[1].split(", ") if found else []
        special = [now] if names and isinstance(now, str) and now not in names else []  # `auto`, beside names of files
        return ", ".join(special + names)
    return ""


def _one_of(names: str) -> str:
    return names and f"one of {names}"


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_type(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"tuple of {_type(typing.get_args(hint)[0])}"
    return {types.NoneType: "None"}.get(hint, getattr(hint, "__name__", str(hint)))


def _line(path: str, value: Any, about: str) -> str:
    shown = value if isinstance(value, str) else repr(value)
    flag = f"  --{path}={shown}"
    body = textwrap.wrap(about, WIDTH - COLUMN)
    if len(flag) >= COLUMN:
        return "\n".join([flag, *(" " * COLUMN + line for line in body)])
    return "\n".join([f"{flag:{COLUMN}}{body[0]}", *(" " * COLUMN + line for line in body[1:])])
