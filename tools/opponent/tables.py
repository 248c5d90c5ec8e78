"""Tables of labelled rows: flipped bits, files that unpack to gigabytes, odd cells, control
characters, other encodings, and rows that lack a label or stand twice."""

import functools
import io
import json
import random
from pathlib import Path

from tools.opponent import settings
from tools.opponent.case import UNREADABLE, Case, NotClear
from tools.opponent.data_files import GROWTH, largest

ROWS = [{"text": f"some words {n}", "label": ("good", "bad")[n % 2]} for n in range(60)]
HUGE = 100  # times a text of 8 MB, which parquet and arrow hold once
ESCAPE = "\x1b]0;title\x07\x1b[31m"
CELLS = {
    "quote": 'a "b',
    "open quote": '"a',
    "nul": "a\x00b",
    "newlines": '"a\nb\r\nc"',
    "formula": "=cmd()",
    "escape": ESCAPE,
    "wide": "a" * 200_000,
    "commas": "a,b,c,d",
    "none": "",
    "NaN": "NaN",
    "surrogate": "\udcff",
    "direction": "\u202e\u2066",
}
VALUES = {
    "null": None,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "empty": "",
    "blank": "  ",
    "number": 3,
    "digits": 10**4000,
    "list": ["good"],
    "object": {"a": 1},
    "bool": True,
    "escape": ESCAPE,
    "surrogate": "\ud800",
    "rare": "rare",
    "upper case": "Good ",
}
ENCODINGS = ("cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037", "utf-7")


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns each odd cell and value, each encoding, the files that unpack to gigabytes, and
    flipped bits of parquet and arrow."""
    made: dict[str, tuple[str, bytes]] = {}
    for name, cell in CELLS.items():
        for at in range(2):
            row = ["a", "good"]
            row[at] = cell
            for suffix, mark in ((".csv", ","), (".tsv", "\t")):
                lines = ["text,label", *(f"t {n},{'ab'[n % 2]}" for n in range(40)), mark.join(row)]
                text = "\n".join(lines).replace(",", mark) if mark == "\t" else "\n".join(lines)
                made[f"{suffix}, cell {at}: {name}"] = suffix, text.encode("utf-8", "replace")
    for name, value in VALUES.items():
        for field in ("text", "label"):
            for times in (1, 30):
                changed = [row | {field: value} for row in ROWS[:times]]
                made[f"{times} rows with {field} = {name}"] = ".jsonl", _lines(changed + ROWS[30:])
    made["all rows are one"] = ".jsonl", _lines(ROWS[:1] * 60)
    made["each row twice"] = ".jsonl", _lines(ROWS * 2)
    made["a row with both labels"] = ".jsonl", _lines([row | {"text": "same"} for row in ROWS])
    table = "text,label\n" + "".join(f"caf\u00e9 {n},{'ab'[n % 2]}\n" for n in range(60))
    for encoding in ENCODINGS:
        for suffix in (".csv", ".jsonl"):
            text = table if suffix == ".csv" else _lines(ROWS).decode()
            made[f"{suffix} in {encoding}"] = suffix, text.encode(encoding, "replace")
    makers = {".parquet": _parquet, ".arrow": _arrow}
    for suffix, make in makers.items():
        made[f"{suffix} that unpacks to 0.8 GB"] = (
            suffix,
            make(["word " * 1_600_000] * HUGE, huge=True),
        )
        plain = make([row["text"] for row in ROWS])
        for number in range(count // 4):
            data = bytearray(plain)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            made[f"{suffix}, flips {number}"] = suffix, bytes(data)
    return [
        Case(kind, label, functools.partial(_run, folder, number, suffix, content), limit=180)
        for number, (label, (suffix, content)) in enumerate(made.items())
    ]


def _lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _record(texts: list[str], huge: bool):
    import pyarrow

    labels = pyarrow.array([("good", "bad")[n % 2] for n in range(len(texts))])
    if huge:
        numbers = pyarrow.array([0] * len(texts), pyarrow.int32())
        column = pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(texts[:1]))
    else:
        column = pyarrow.array(texts)
    return pyarrow.table({"text": column, "label": labels})


def _parquet(texts: list[str], huge: bool = False) -> bytes:
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(_record(texts, huge), sink, compression="zstd")
    return sink.getvalue()


def _arrow(texts: list[str], huge: bool = False) -> bytes:
    import pyarrow

    sink = io.BytesIO()
    table = _record(texts, huge)
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _run(folder: Path, number: int, suffix: str, content: bytes) -> None:
    own = folder / f"table{number}"
    own.mkdir()
    path = own / f"x{suffix}"
    path.write_bytes(content)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest size so far
    before = largest()
    try:
        values = settings.SMALL | {"data.path": path, "data.cache": own / "cache"}
        data = settings.check(settings.arguments("classify", values)).train_data
        for row in range(min(3, data.num_examples)):
            data.example(row, 0, row)
    finally:
        grown = largest() - before
    if grown > 3 * GROWTH:  # pyarrow holds a page of parquet, as long as its file says
        raise NotClear(f"takes {grown >> 20} MiB")
    _check_terminal(data)


def _check_terminal(data) -> None:
    """Raises NotClear if what a run says of its data would reach a terminal unescaped."""
    from flaxformer_lite.files.read import escape_controls

    for _, words in data.described:
        if UNREADABLE.search(escape_controls(words).replace("\n", " ")):
            raise NotClear(f"prints control characters: {words[:80]!r}")
