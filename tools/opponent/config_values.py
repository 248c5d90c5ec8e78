"""Every field of the pages and of every plug-in's record, given as text on the command line."""

import functools
import random
from pathlib import Path

from tools.opponent import settings
from tools.opponent.case import Case, NotClear

SENSELESS = ("nan", "inf", "-inf", "-7")  # no number of ours may be one of them
VALUES = (
    *SENSELESS,
    "",
    "-1",
    "0",
    "1",
    "2",
    "-0.0",
    "0.5",
    "1.5",
    "1e308",
    "-1e308",
    "1e-320",
    "1e-45",
    "1e12",
    "1000000000000",
    "2147483648",
    "-2147483649",
    "9223372036854775808",
    "9" * 400,
    "9" * 5000,
    "True",
    "None",
    "null",
    "x",
    "é",
    "\udcff",
    "\x1b[31mred",
    "a b",
    "()",
    "('a', 'a')",
    "(1,)",
    "[[[]]]",
    "{'name': 1}",
    "0x10",
    "1_000",
    "__import__('os')",
    "../..",
    "/dev/zero",
    "gs://bucket",
    "s3://KEY:HIDDEN@bucket/x",
    "gs://bucket/x?token=HIDDEN",
    "(" * 300,
    "*",
    "a" * 3000,
)
FOLDERS = {
    "positions": "model.position",
    "mixers": "model.mixer",
    "feed_forwards": "model.feed_forward",
    "objectives": "objective",
}


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns a case for each field and value."""
    base = settings.SMALL | {"data.path": settings.text(folder), "data.cache": folder / "cache"}
    return [
        Case(
            kind,
            f"{page}: {' '.join(f'{n}={v}' for n, v in extra.items())}"
            f" --config.{field}={value[:40]!r}",
            functools.partial(_run, page, base | extra, field, value),
        )
        for page, extra, field in _fields()
        for value in VALUES
    ]


def _run(page: str, base: dict, field: str, value: str) -> None:
    made = settings.check(
        settings.arguments(page, {**{k: v for k, v in base.items() if k != field}, field: value})
    )
    if value in SENSELESS and not isinstance(_value(made.cfg, field), str | bool | tuple):
        raise NotClear(f"{value} is accepted as {_value(made.cfg, field)}")


def _value(cfg: object, field: str) -> object:
    for name in field.split("."):
        cfg = getattr(cfg, name)
    return cfg


def _fields() -> list[tuple[str, dict, str]]:
    """Lists (page, the fields that choose a plug-in, field)."""
    found = [(page, {}, field) for page in settings.PAGES for field in _leaves(page, {})]
    from flaxformer_lite import registry

    for folder, node in FOLDERS.items():
        for name in registry.available(folder):
            chosen = {f"{node}.name": name}
            found += [
                ("gpt2_tiny", chosen, field)
                for field in _leaves("gpt2_tiny", chosen)
                if field.startswith(f"{node}.")
            ]
    return found


def _leaves(page: str, chosen: dict) -> list[str]:
    from flaxformer_lite.cli import command_line

    def walk(values, path):
        for name, value in values.items():
            yield from (
                walk(value, f"{path}{name}.") if hasattr(value, "items") else (f"{path}{name}",)
            )

    return list(walk(command_line.config(settings.arguments(page, chosen)), ""))
