"""safetensors files with hostile headers, cut files, and flipped bits."""

import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from tools.opponent import published
from tools.opponent.case import UNREADABLE, Case, NotClear

NAMES = (
    "\ud800",
    "\x1b[31mred",
    "\x00",
    "[/x]",
    "[bold]x[/bold]",
    "a" * 100_000,
    "",
    "..",
    "\u202e",
    "é",
    "__metadata__",
    "x\ny",
)
SHAPES = (
    [2**63],
    [2**31, 2**31, 2**31],
    [0, 2**63],
    [1] * 65,
    [2] * 65,
    [-1],
    [1.5],
    ["3"],
    [None],
    [True],
    None,
    3,
    "3",
    {},
    [2**64 - 1],
    [10**100],
    [[3]],
    [1] * 5000,
    [2**62] * 300,
    [2**62] * 20_000,
    [0] * 65,
    [2**63, 0],
    [],
)
DTYPES = ("F8_E4M3", "F128", "f32", "", None, 3, [], {}, "\x1b[31m", "U16", "C64", "BOOL", "F64")
OFFSETS = (
    [0, 0],
    [0, 2**63],
    [-8, 0],
    [8, 0],
    [0],
    [0, 1, 2],
    None,
    "0-8",
    [0.0, 8.0],
    ["0", "8"],
    [True, 8],
    [10**400, 10**400],
    {},
    [None, 1],
)
RAW = (
    "deep",
    "number",
    "nan",
    "float",
    "not json",
    "list",
    "string",
    "null",
    "twice",
    "entry twice",
    "bad utf-8",
    "open",
    "trailing",
)
SIZES = (0, 1, 7, 8, 9, 2**31, 2**63, 2**64 - 1, 100_000_001)
FILES = ("/dev/zero", "/dev/null", "fifo", "folder", "broken link", "circle", "empty")


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns each odd name, shape, dtype, offset and length, and flipped and cut files."""
    base = published.make(folder)
    data = (base / "model.safetensors").read_bytes()
    made: dict[str, Callable[[Path], None]] = {}
    for name in NAMES:
        made[f"a tensor named {name[:20]!r}"] = functools.partial(_entry, name, {})
        made[f"a tensor more named {name[:20]!r}"] = functools.partial(_more, name)
    for field, values in (("shape", SHAPES), ("dtype", DTYPES), ("data_offsets", OFFSETS)):
        for value in values:
            shown = f"{field}={str(value)[:40]} ({len(str(value))} characters)"
            made[shown] = functools.partial(_entry, None, {field: value})
    made["no dtype"] = functools.partial(_entry, None, {"dtype": ...})
    for what in RAW:
        made[f"header: {what}"] = functools.partial(_raw, what)
    for size in SIZES:
        made[f"length {size}"] = functools.partial(_length, size)
    for what in FILES:
        made[f"file: {what}"] = functools.partial(_odd, what)
    for _ in range(count // 3):
        end = int.from_bytes(data[:8], "little") + 8
        spots = [(rng.randrange(end), rng.randrange(8)) for _ in range(rng.randint(1, 3))]
        made[f"flips {spots}"] = functools.partial(_flip, spots)
        cut = rng.randrange(len(data))
        made[f"cut at {cut}"] = functools.partial(_cut, cut)
    return [
        Case(kind, f"{door}: {label}", functools.partial(_run, base, folder, change, door, label))
        for label, change in made.items()
        for door in ("load", "inspect")
    ]


def _run(base: Path, folder: Path, change: Callable[[Path], None], door: str, label: str) -> None:
    own = published.copied(base, folder)
    change(own / "model.safetensors")
    if door == "inspect":
        _inspect(own)
        return
    from flaxformer_lite import load_pretrained

    load_pretrained(own)
    if (
        not label.startswith(("flips", "file: circle"))
        and (own / "model.safetensors").read_bytes() != (base / "model.safetensors").read_bytes()
    ):
        _is_harmless(own, label)


def _is_harmless(own: Path, label: str) -> None:
    """Refuses a load of a changed file, unless the format allows the change."""
    if "__metadata__" not in label and "[]" not in label:
        raise NotClear("a changed file loads without a word")


def _inspect(own: Path) -> None:
    import contextlib
    import io

    from flaxformer_lite.__main__ import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main(["inspect", str(own)])
    if found := UNREADABLE.search(shown.getvalue()):
        raise NotClear(f"prints the character {found[0]!r}")


def _header(path: Path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _put(path: Path, text: str | bytes, body: bytes) -> None:
    text = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def _entry(name: str | None, fields: dict, path: Path) -> None:
    header, body = _header(path)
    first = next(key for key in header if key != "__metadata__")
    entry = {key: value for key, value in (header[first] | fields).items() if value is not ...}
    header = {first if name is None else name: entry} | {
        key: value for key, value in header.items() if key != first
    }
    _put(path, json.dumps(header), body)


def _more(name: str, path: Path) -> None:
    header, body = _header(path)
    header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}
    _put(path, json.dumps(header), body + bytes(4))


def _raw(what: str, path: Path) -> None:
    header, body = _header(path)
    text = json.dumps(header)
    first = text.index('{"dtype"')
    texts = {
        "deep": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
        "number": text.replace("[", "[" + "9" * 5000 + ",", 1),
        "nan": text.replace("[", "[NaN,", 1),
        "float": text.replace("[", "[1e999,", 1),
        "not json": "words" * 99,
        "list": "[1, 2]",
        "string": '"x"',
        "null": "null",
        "twice": text[:-1] + "," + text[1:].replace("F32", "I32"),
        "open": text[:-9],
        "trailing": text + "}",
        "entry twice": text[: first + 1] + '"dtype": "F64", ' + text[first + 1 :],
    }
    _put(path, b"\xff\xfe" * 9 if what == "bad utf-8" else texts[what], body)


def _length(size: int, path: Path) -> None:
    path.write_bytes(size.to_bytes(8, "little") + path.read_bytes()[8:])


def _odd(what: str, path: Path) -> None:
    path.unlink()
    if what.startswith("/dev"):
        path.symlink_to(what)
    else:
        {
            "fifo": os.mkfifo,
            "folder": Path.mkdir,
            "broken link": lambda p: p.symlink_to("nowhere"),
            "circle": lambda p: p.symlink_to(p),
            "empty": Path.touch,
        }[what](path)


def _flip(spots: list[tuple[int, int]], path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at, bit in spots:
        data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def _cut(at: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:at])
