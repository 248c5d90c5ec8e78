"""Tokenizer files: parts of other types, mismatched vocabularies, expensive patterns, and flipped
or cut ones."""

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

from tools.opponent import published
from tools.opponent.case import Case, NotClear

VALUES = (
    None,
    3,
    -1,
    "x",
    [],
    {},
    [1],
    {"type": "x"},
    {"type": None},
    {"type": "BPE"},
    {"type": "WordLevel", "vocab": {"x": 0}},
    {"type": "WordLevel", "vocab": {}},
    {"type": "Unigram", "vocab": []},
    {"type": "Sequence", "normalizers": []},
    True,
    10**30,
    {"type": "BPE", "vocab": {"a": -1}, "merges": []},
    {"type": "BPE", "vocab": {"a": 2**32}, "merges": [["a", "b"]]},
    {"type": "WordLevel", "vocab": {"a": 2**31 - 1}, "unk_token": "a"},
    [{"id": 2**31 - 1, "content": "x"}],
    [
        {
            "id": 0,
            "content": "",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "none", "type_id": 0}}],
        "pair": [],
    },
)
PATTERNS = (
    r"(a+)+$",
    r"(a|aa)+$",
    r"(a|a?)+$",
    r"((a*)*)*b",
    "(" * 500 + "a" + ")" * 500,
    "(",
    "[",
    "",
    r"a{1,100000}",
    r"(?=a)*",
    r"\p{Nope}",
    r"(?<=a+)b",
    r"(.*)*(.*)*(.*)*x",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
)
BEYOND = (-1, 300, 319, 10**6, 2**31 - 1)  # ids that no vocabulary has, though logits may
PATIENCE = "a" * 5000 + "!" + " aaaa" * 50


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns each part with each value, each pattern in each place, and flipped, cut and foreign
    files."""
    base = published.make(folder)
    data = (base / "tokenizer.json").read_bytes()
    parts = [*json.loads(data), "vocab", "merges"]
    made: dict[str, Callable[[Path], None]] = {}
    for part in parts:
        for value in VALUES:
            made[f"{part} = {str(value)[:60]}"] = functools.partial(_part, part, value)
    for pattern in PATTERNS:
        for place in ("pre_tokenizer", "normalizer", "decoder"):
            made[f"{place} with the pattern {pattern[:30]!r}"] = functools.partial(
                _pattern, place, pattern
            )
    for number in range(count // 2):
        spot = rng.randrange(len(data))
        bit = rng.randrange(8)
        cut = rng.randrange(len(data))
        made[f"flip {spot}.{bit}"] = functools.partial(
            _bytes, data[:spot] + bytes([data[spot] ^ 1 << bit]) + data[spot + 1 :]
        )
        made[f"cut at {cut}"] = functools.partial(_bytes, data[:cut])
        made[f"sentencepiece {number}"] = functools.partial(
            _sentencepiece, rng.randbytes(rng.choice((0, 1, 20, 4000)))
        )
    made["bytes: other file"] = functools.partial(_other, "tokenizer.bytes", b"\xff" * 99)
    made["empty"] = functools.partial(_bytes, b"")
    return [
        Case(kind, label, functools.partial(_run, base, folder, change))
        for label, change in made.items()
    ]


def _run(base: Path, folder: Path, change: Callable[[Path], None]) -> None:
    own = published.copied(base, folder)
    change(own)
    from flaxformer_lite.model_details import load_tokenizer

    tokenizer = load_tokenizer(own)
    for text in (published.TEXT, "", "é\u202e\x00", PATIENCE):
        ids = tokenizer(text, max_length=64)["input_ids"]
        tokenizer.decode(ids[0])
        if not isinstance(tokenizer.decode([*ids[0], *BEYOND]), str):
            raise NotClear("ids without a token have no text")
        if ids.shape[1] > 64:
            raise NotClear(f"{ids.shape[1]} tokens where max_length is 64")
    tokenizer([published.TEXT], ["x"], max_length=64)


def _part(part: str, value: object, own: Path) -> None:
    values = json.loads((own / "tokenizer.json").read_text())
    (values["model"] if part in ("vocab", "merges") else values)[part] = value
    (own / "tokenizer.json").write_text(json.dumps(values))


def _pattern(place: str, pattern: str, own: Path) -> None:
    if place == "pre_tokenizer":
        part = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
    else:
        part = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}
    _part(place, part, own)


def _bytes(data: bytes, own: Path) -> None:
    (own / "tokenizer.json").write_bytes(data)


def _other(name: str, data: bytes, own: Path) -> None:
    (own / "tokenizer.json").unlink()
    (own / name).write_bytes(data)


def _sentencepiece(data: bytes, own: Path) -> None:
    _other("tokenizer.model", data, own)
    (own / "config.json").write_text(
        json.dumps(json.loads((own / "config.json").read_text()) | {"model_type": "llama"})
    )
