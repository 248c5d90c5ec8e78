"""Training workdirs with damaged files, read as a model and continued; what is read must be what
the run wrote."""

import functools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.opponent import settings
from tools.opponent.case import Case, NotClear, judge_exit

STEPS = 8
RECORDS = (None, 3, "x", [], {}, -1, 10**30, [None], {"x": None}, [[1], 2], True)
LINES = (
    b"\xff\n",
    b"{\n",
    b"[]\n",
    b"3\n",
    b"null\n",
    b'{"step": "x"}\n',
    b'{"step": 1}\n',
    b"\x00\n",
    b'{"step": ' + b"9" * 5000 + b"}\n",
    b"[" * 100_000 + b"\n",
    b'{"step": 2, "split": "train", "loss": "x"}\n',
    b'{"step": 2, "split": 3}\n',
    b"\n\n",
    b'{"step": 1e999}\n',
    b'{"step": 2, "split": "eval", "loss": NaN}\n',
    b'{"step": -3, "split": "train", "loss": 1.0}\n',
)
FILES = (
    "config.json",
    "metrics.jsonl",
    "tokenizer/tokenizer.bytes",
    "checkpoints/8/meta/metadata",
    "checkpoints/8/state/manifest.ocdbt",
    "checkpoints/8/_CHECKPOINT_METADATA",
    "checkpoints/8/state/_METADATA",
    "checkpoints/8/state/_sharding",
)


def train(folder: Path, workdir: Path, steps: int = STEPS) -> subprocess.CompletedProcess:
    """Trains, or continues, a tiny GPT in a process of its own."""
    line = [sys.executable, "-m", "flaxformer_lite", "train", f"--workdir={workdir}"]
    values = settings.RUN | {
        "data.path": settings.text(folder),
        "data.cache": folder / "cache",
        "train.steps": steps,
    }
    return subprocess.run(
        [*line, *settings.arguments("gpt2_tiny", values)],
        capture_output=True,
        text=True,
        errors="replace",
    )


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns damages of each file, read as a model; one in eight is also continued."""
    base = folder / "run"
    made = train(folder, base)
    if made.returncode:
        raise RuntimeError(f"the run to damage does not train: {made.stderr[-400:]}")
    damages: dict[str, Callable[[Path], None]] = {}
    for line in LINES:
        for place in ("first", "last"):
            damages[f"metrics.jsonl, {place} line {line[:30]!r}"] = functools.partial(
                _line, line, place
            )
    record = json.loads((base / "checkpoints/8/meta/metadata").read_text())
    for field in record:
        for value in RECORDS:
            damages[f"record of step 8: {field} = {value!r}"] = functools.partial(
                _record, field, value
            )
    for name in FILES:
        for _ in range(8):
            spot = rng.random()
            bit = rng.randrange(8)
            damages[f"{name}, bit {bit} at {spot:.3f}"] = functools.partial(_flip, name, spot, bit)
        for what in ("deleted", "empty", "/dev/zero", "fifo", "folder", "nul"):
            damages[f"{name} is {what}"] = functools.partial(_special, name, what)
    for field in _leaves(json.loads((base / "config.json").read_text())["config"]):
        for value in ("evil:X", ["evil:X"], {"name": "evil:X"}):
            damages[f"config.json: {'.'.join(field)} = {value}"] = functools.partial(
                _plugin, field, value
            )
    for new in ("9", "10", "0008", "99999999999999999999", "8.tmp", "-1"):
        damages[f"cp -r checkpoints/8 checkpoints/{new}"] = functools.partial(_copy, new)
    read = [
        Case(kind, f"read: {label}", functools.partial(_read, base, folder, damage))
        for label, damage in damages.items()
    ]
    continued = rng.sample(sorted(damages), min(len(damages), max(1, count // 10)))
    goal = functools.partial(_continue, base, folder)
    return rng.sample(read, min(len(read), count - len(continued))) + [
        Case(kind, f"continue: {label}", functools.partial(goal, damages[label]), limit=240)
        for label in continued
    ]


def _digests(where: Path) -> dict[str, Any]:
    """Reads a run as a model: the parameters' digests by step are in the records of its
    checkpoints."""
    import numpy as np
    from flax.traverse_util import flatten_dict

    from flaxformer_lite import load_pretrained, load_tokenizer
    from flaxformer_lite.checkpoints.workdir import read_run

    model, params = load_pretrained(where)
    flat = {
        path: float(np.asarray(leaf, np.float64).sum())
        for path, leaf in flatten_dict(params, sep="/").items()
    }
    ids = load_tokenizer(where).encode("123: 456 é")
    return {"step": read_run(where).step, "config": repr(model.cfg), "params": flat, "ids": ids}


def _read(base: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    own = _copied(base, folder)
    damage(own)
    sys.modules.pop("evil", None)
    sys.path.insert(0, str(_evil(folder)))
    try:
        found = _digests(own / "checkpoints" / "..")
    finally:
        sys.path.pop(0)
        if "evil" in sys.modules:
            raise NotClear("imports the module that config.json names")
    whole = _expected(base, folder)
    if found not in whole:
        wrong = [name for name in found if found[name] != whole[0][name]]
        raise NotClear(f"reads other {', '.join(wrong)} without a word")


def _expected(base: Path, folder: Path) -> list[dict[str, Any]]:
    """Returns what may be read from a damaged run: one of its checkpoints as it was, newest first;
    read once."""
    path = folder / "expected.json"
    if not path.exists():
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps([_digests(_only(base, folder, step)) for step in (8, 6, 4)]))
        own.replace(path)
    return json.loads(path.read_text())


def _only(base: Path, folder: Path, step: int) -> Path:
    """Returns a copy of the run whose newest checkpoint is that of `step`."""
    own = folder / f"only{step}-{os.getpid()}"
    if not own.exists():
        shutil.copytree(base, own)
        for path in (own / "checkpoints").iterdir():
            if path.name.isdigit() and int(path.name) > step:
                shutil.rmtree(path)
    return own


def _continue(base: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    own = _copied(base, folder)
    straight = _copied(base, folder)
    damage(own)
    done = train(folder, own, STEPS + 2)
    if done.returncode:
        if why := judge_exit(done.returncode, done.stderr):
            raise NotClear(why)
        return
    if why := "Traceback" in done.stderr:
        raise NotClear(f"a traceback beside success: {done.stderr[-200:]!r}")
    train(folder, straight, STEPS + 2)
    ends = [
        json.loads((path / f"checkpoints/{STEPS + 2}/meta/metadata").read_text())["leaves"]
        for path in (own, straight)
    ]
    if ends[0] != ends[1]:
        raise NotClear("continues to another end than the undamaged run")


def _copied(base: Path, folder: Path) -> Path:
    number = 0
    while True:
        try:
            return Path(shutil.copytree(base, folder / f"copy{os.getpid()}-{number}"))
        except FileExistsError:
            number += 1


def _line(line: bytes, place: str, own: Path) -> None:
    path = own / "metrics.jsonl"
    path.write_bytes(line + path.read_bytes() if place == "first" else path.read_bytes() + line)


def _record(field: str, value: Any, own: Path) -> None:
    path = own / "checkpoints/8/meta/metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))


def _flip(name: str, spot: float, bit: int, own: Path) -> None:
    path = own / name
    if path.is_file() and path.stat().st_size:
        data = bytearray(path.read_bytes())
        data[int(spot * len(data))] ^= 1 << bit
        path.write_bytes(bytes(data))


def _special(name: str, what: str, own: Path) -> None:
    path = own / name
    path.unlink(missing_ok=True)
    match what:
        case "/dev/zero":
            path.symlink_to(what)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "nul":
            path.write_bytes(bytes(5000))


def _leaves(values: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Lists the paths of all fields and sections."""
    if not isinstance(values, dict):
        return []
    return [
        path for name in values for path in ((*above, name), *_leaves(values[name], (*above, name)))
    ]


def _plugin(field: tuple[str, ...], value: Any, own: Path) -> None:
    """Names a plug-in in a field, with the hash that belongs to it."""
    from flaxformer_lite.config import fingerprint

    path = own / "config.json"
    inputs = json.loads(path.read_text())
    node = inputs["config"]
    for name in field[:-1]:
        node = node[name]
    node[field[-1]] = value
    inputs["hash"] = fingerprint(inputs["config"])
    path.write_text(json.dumps(inputs))


def _evil(folder: Path) -> Path:
    """Returns a folder with a module that nothing may import."""
    made = folder / "modules"
    made.mkdir(exist_ok=True)
    (made / "evil.py").write_text("X = object\n")
    return made


def _copy(new: str, own: Path) -> None:
    shutil.copytree(own / "checkpoints/8", own / f"checkpoints/{new}")
