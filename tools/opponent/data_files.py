"""Text files and folders: endless, broken, deep, huge and empty ones, and whole ones with flipped
bits."""

import functools
import gzip
import json
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

from tools.opponent import settings
from tools.opponent.case import Case, NotClear

GROWTH = 512 << 20  # bytes that reading a small file may add to the largest size of the process
LINE = json.dumps({"text": "some words and more words " * 10}) + "\n"
PAIR = json.dumps({"source": "some words", "target": "more words"}) + "\n"
ODD_LINES = {
    "deep": '{"text": "x", "y": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "deep objects": '{"a":' * 20_000 + "1" + "}" * 20_000 + "\n",
    "number": '{"text": "x", "n": ' + "9" * 5000 + "}\n",
    "float": '{"text": "x", "n": 1e999}\n',
    "nan": '{"text": NaN}\n',
    "text is a number": '{"text": 3}\n',
    "null": '{"text": null}\n',
    "list": "[1, 2]\n",
    "string": '"x"\n',
    "no field": "{}\n",
    "empty text": '{"text": ""}\n',
    "twice": '{"text": "x", "text": 3}\n',
    "surrogate": '{"text": "\\ud800 x"}\n',
    "nul": '{"text": "\\u0000"}\n',
    "open": '{"text": "x\n',
    "comma": '{"text": "x",}\n',
    "key is long": '{"' + "k" * 100_000 + '": 1}\n',
    "bytes": "\udcff\udcfe\n",
    "control": '{"text": "a\x01b"}\n',
    "blank": "   \n",
    "nul line": "\x00\x00\n",
    "escape": '\x1b[31m{"text": 3}\n',
}
CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "newline": b"\n",
    "spaces": b" " * 9999,
    "nul": b"\0" * 9999,
    "utf-16": ("words " * 999).encode("utf-16"),
    "latin-1": "é ".encode("latin-1") * 999,
    "bom": b"\xef\xbb\xbf" + b"words " * 999,
    "returns": b"words\r" * 999,
    "pickle": b"\x80\x04K\x03." * 99,
    "cut utf-8": b"words " * 999 + "é".encode()[:1],
    "surrogates": b"\xed\xa0\x80 words" * 99,
}
ARCHIVES = {
    "not gz": b"words " * 999,
    "cut gz": gzip.compress(LINE.encode() * 99)[:-9],
    "gz header": b"\x1f\x8b\x08",
    "gz in gz": gzip.compress(gzip.compress(LINE.encode() * 99)),
    "zlib": zlib.compress(b"words " * 999),
    "tail": gzip.compress(LINE.encode() * 99) + b"tail",
}


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns the odd files, each odd line at each place of a jsonl and its compressed form, and
    flipped files."""
    files: dict[str, tuple[str, Callable[[Path], None]]] = dict(_odd_files())
    for name, line in ODD_LINES.items():
        for first in (0, 30):
            for suffix in (".jsonl", ".jsonl.gz", ".txt"):
                content = (LINE * first + line + LINE * 30).encode("utf-8", "surrogateescape")
                files[f"{name}, line {first + 1}{suffix}"] = (
                    f"x{suffix}",
                    functools.partial(_write, content),
                )
    for number in range(count // 2):
        suffix = rng.choice((".jsonl", ".jsonl.gz", ".txt.gz", ".txt"))
        content = _flipped((LINE * 40).encode(), suffix, random.Random(rng.random()))
        files[f"flips {number}{suffix}"] = (f"x{suffix}", functools.partial(_write_bytes, content))
    return [
        Case(kind, label, functools.partial(_run, folder, label, name, make), limit=180)
        for label, (name, make) in files.items()
    ]


def _odd_files():
    yield "/dev/zero", ("x.txt", lambda path: path.symlink_to("/dev/zero"))
    yield "/dev/zero as gz", ("x.txt.gz", lambda path: path.symlink_to("/dev/zero"))
    yield "/dev/zero as jsonl", ("x.jsonl", lambda path: path.symlink_to("/dev/zero"))
    yield "/dev/null", ("x.txt", lambda path: path.symlink_to("/dev/null"))
    yield "/proc/self/mem", ("x.txt", lambda path: path.symlink_to("/proc/self/mem"))
    yield "fifo", ("x.txt", os.mkfifo)
    yield "fifo as jsonl", ("x.jsonl", os.mkfifo)
    yield "fifo in a folder", ("d", lambda path: (path.mkdir(), os.mkfifo(path / "x.txt")))
    yield "broken link", ("x.txt", lambda path: path.symlink_to("nowhere"))
    yield "circle of links", ("x.txt", lambda path: path.symlink_to(path))
    yield "folder named as a file", ("x.jsonl", Path.mkdir)
    yield "empty folder", ("d", Path.mkdir)
    yield "folder in a circle", ("d", lambda path: (path.mkdir(), (path / "d").symlink_to(path)))
    yield (
        "folder of other files",
        ("d", lambda path: (path.mkdir(), (path / "x.csv").write_text("1,2"))),
    )
    yield "folder with an empty file", ("d", lambda path: (path.mkdir(), (path / "x.txt").touch()))
    yield "one line of 30 MB", ("x.txt", functools.partial(_write, b"word " * 6_000_000))
    yield "one word of 5 MB", ("x.txt", functools.partial(_write, b"a" * 5_000_000))
    for name, content in CONTENTS.items():
        for suffix in (".txt", ".jsonl", ".gz", ".txt.gz", ".jsonl.gz", ""):
            yield f"{name}{suffix}", (f"x{suffix}", functools.partial(_write, content))
    for name, content in ARCHIVES.items():
        for suffix in (".txt.gz", ".jsonl.gz"):
            yield f"{name}{suffix}", (f"x{suffix}", functools.partial(_write_bytes, content))
    for suffix in (".txt.gz", ".jsonl.gz"):
        yield f"bomb of 200 MB{suffix}", (f"x{suffix}", _bomb)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def _write_bytes(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _bomb(path: Path) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(200):
            file.write(b"words and more words\n" * 50_000)


def _flipped(content: bytes, suffix: str, rng: random.Random) -> bytes:
    data = bytearray(gzip.compress(content) if suffix.endswith(".gz") else content)
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _run(folder: Path, label: str, name: str, make: Callable[[Path], None]) -> None:
    own = folder / label.replace("/", "_")
    own.mkdir()
    make(own / name)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest size so far
    before = largest()
    try:
        values = settings.SMALL | {"data.path": own / name, "data.cache": own / "cache"}
        data = settings.check(settings.arguments("gpt2_tiny", values)).train_data
        for row in range(min(3, data.num_examples)):
            data.example(row, 0, row)
    finally:
        grown = largest() - before
    if grown > GROWTH:
        raise NotClear(f"takes {grown >> 20} MiB")


def largest() -> int:
    """Returns the most bytes that this process has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
