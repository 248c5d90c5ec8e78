"""The JSON files beside weights: fields of other types and sizes, and files that are none."""

import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from tools.opponent import published
from tools.opponent.case import Case, NotClear

# As text, for what json.dumps cannot write.
VALUES = (
    "null",
    "true",
    "3",
    "-5",
    "-1",
    "0",
    "1e999",
    "NaN",
    "1.5",
    "9" * 30,
    "9" * 5000,
    "1000000000000",
    '"x"',
    '""',
    "[]",
    "{}",
    "[1]",
    '["x"]',
    "[[1], [2]]",
    "[[[[]]]]",
    "[" * 50_000 + "]" * 50_000,
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    '"\\ud800"',
    '"\\u001b[31m"',
    '{"content": 3}',
    '{"content": {"content": "x"}}',
    "[null]",
    "[3, null]",
    '"3"',
    "-9223372036854775809",
    '[{"name": "default"}]',
    '[{"name": "default", "template": 3}]',
    "2147483648",
    '"' + "a" * 100_000 + '"',
)
CONTENTS = (
    "",
    " ",
    "{",
    "[]",
    "3",
    "null",
    '"x"',
    "{}x",
    "\ufeff{}",
    "\x00",
    "{'a': 1}",
    "[" * 100_000,
    "\udcff\udcfe",
    '{"a": 1, "a": 2}',
)
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
)
SPECIAL = ("/dev/zero", "/dev/null", "fifo", "folder", "broken link", "circle")
MORE = {
    "tokenizer_config.json": (
        "add_bos_token",
        "bos_token",
        "unk_token",
        "truncation_side",
        "chat_template",
    ),
    "generation_config.json": ("decoder_start_token_id", "forced_eos_token_id", "max_length"),
    "special_tokens_map.json": ("unk_token", "additional_special_tokens"),
    "config.json": (
        "num_labels",
        "id2label",
        "label2id",
        "torch_dtype",
        "quantization_config",
        "auto_map",
        "layer_types",
    ),
}


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns each field of each file with each value, and each file with other contents or of
    another kind."""
    base = published.make(folder)
    found: list[tuple[str, Callable[[Path], None]]] = []
    for name in FILES:
        for content in CONTENTS:
            found.append(
                (f"{name} is {content[:20]!r}", functools.partial(_contents, name, content))
            )
        for what in SPECIAL:
            found.append((f"{name} is {what}", functools.partial(_special, name, what)))
    for name in FILES[:4]:
        for field in (*json.loads((base / name).read_text()), *MORE[name]):
            for value in VALUES:
                found.append(
                    (
                        f"{name}: {field} = {value[:40]}",
                        functools.partial(_field, name, field, value),
                    )
                )
    return [
        Case(kind, label, functools.partial(_run, base, folder, change, label))
        for label, change in found
    ]


def _run(base: Path, folder: Path, change: Callable[[Path], None], label: str) -> None:
    own = published.copied(base, folder)
    change(own)
    from flaxformer_lite.cli.open_model import open_model
    from flaxformer_lite.inference.settings import make_settings
    from flaxformer_lite.model_details import load_labels, published_settings

    opened = open_model(str(own))
    ids = opened.tokenizer(published.TEXT)["input_ids"]
    load_labels(own)
    make_settings(**{"max_new_tokens": 2} | published_settings(own))
    if ids.shape[1] < 2:
        raise NotClear(f"a text of {len(published.TEXT)} characters becomes {ids.shape[1]} token")


def _contents(name: str, content: str, own: Path) -> None:
    (own / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    _index_only(name, own)


def _special(name: str, what: str, own: Path) -> None:
    path = own / name
    path.unlink(missing_ok=True)
    if what.startswith("/dev"):
        path.symlink_to(what)
    else:
        {
            "fifo": os.mkfifo,
            "folder": Path.mkdir,
            "broken link": lambda p: p.symlink_to("nowhere"),
            "circle": lambda p: p.symlink_to(p),
        }[what](path)
    _index_only(name, own)


def _index_only(name: str, own: Path) -> None:
    if name.endswith("index.json"):  # read only where there is no single file
        (own / "model.safetensors").rename(own / "model-00001-of-00001.safetensors")


def _field(name: str, field: str, value: str, own: Path) -> None:
    values = json.loads((own / name).read_text()) | {field: "VALUE"}
    (own / name).write_text(json.dumps(values).replace('"VALUE"', value))
