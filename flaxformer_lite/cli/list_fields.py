"""The help page on a config's fields: type, value, and the comment on each in its dataclass."""

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
import typing
from collections.abc import Iterable, Iterator, Sequence

from ml_collections import ConfigDict

from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, from_config_dict, plugin_name
from flaxformer_lite.config.parsing import plugin_fields
from flaxformer_lite.config.rules import (
    Sections,
    declared_fields,
    is_optional,
    rules_of,
    strip_annotation,
)

EXPLANATION_COLUMN = 50  # where explanations begin
LINE_WIDTH = 120  # of a line


def describe(config: ConfigDict) -> str:
    """Describes each field in one or more lines, by section, with its value in this config."""
    return "\n".join(_section(from_config_dict(ExperimentConfig, config), "config", ""))


def _section(cfg: object, path: str, folder: str) -> Iterator[str]:
    yield f"{path}:"
    if folder:
        chosen = plugin_name(cfg) if cfg else ""
        yield _line(f"{path}.name", chosen, f"str: {_one_of(registry.available(folder))}")
    if cfg is None:  # an optional plug-in that is not chosen
        return
    kind: type = type(cfg)
    helps = comments(kind)
    plugins = plugin_fields(kind)
    sections: list[Iterable[str]] = []
    for name, hint in declared_fields(type(cfg)).items():
        value = getattr(cfg, name)
        if isinstance(value, Sections):
            record = typing.get_args(hint)[1]
            fields = ", ".join(declared_fields(record))
            sections.append([f"{path}.{name}.NAME: {helps.get(name)}; fields: {fields}"])
            sections += [_section(item, f"{path}.{name}.{key}", "") for key, item in value.items()]
            continue
        if name in plugins or dataclasses.is_dataclass(value):
            sections.append(_section(value, f"{path}.{name}", plugins.get(name, "")))
            continue
        names = [rule.names for rule in rules_of(hint) if hasattr(rule, "names")]
        about = "; ".join(filter(None, (helps.get(name), *map(_one_of, names))))
        yield _line(f"{path}.{name}", value, ": ".join(filter(None, (_type(hint), about))))
    for section in sections:
        yield ""
        yield from section


@functools.cache
def comments(cls: type) -> dict[str, str]:
    """Returns the comment on each field: at the end of its line, or in the lines above it.

    They are read from the source of a dataclass and its bases.
    """
    fields = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class defined at a prompt has no source
            continue
        beside, above = _comments_by_line(source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                comment = beside.get(node.end_lineno or 0, "")
                fields[node.target.id] = comment or _block_above(above, node.lineno)
    return fields


def _comments_by_line(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns the comments beside code and those that fill a line, by the number of their line."""
    beside: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or text.startswith("noqa"):
            continue
        lines = alone if token.line.lstrip().startswith("#") else beside
        lines[token.start[0]] = text
    return beside, alone


def _block_above(comments: dict[int, str], line: int) -> str:
    """Joins the comments in the lines directly above a line."""
    block: list[str] = []
    while line - 1 in comments:
        line -= 1
        block.insert(0, comments[line])
    return " ".join(block)


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}"


def _type(hint: object) -> str:
    kind = strip_annotation(hint)
    if typing.get_origin(kind) is tuple:
        name = f"tuple of {_type(typing.get_args(kind)[0])}"
    else:
        name = kind.__name__
    if is_optional(hint):
        return f"{name} or None"
    return name


def _line(path: str, value: object, about: str) -> str:
    shown = value if isinstance(value, str) else repr(value)
    flag = f"  --{path}={shown}"
    body = textwrap.wrap(about, LINE_WIDTH - EXPLANATION_COLUMN)
    if len(flag) >= EXPLANATION_COLUMN:
        lines = [flag]
    else:
        lines = [f"{flag:{EXPLANATION_COLUMN}}{body[0]}"]
        body = body[1:]
    return "\n".join([*lines, *(" " * EXPLANATION_COLUMN + line for line in body)])
