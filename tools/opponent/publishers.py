"""Kills of save_pretrained and convert at random instants, and two of them at once."""

import functools
import hashlib
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.opponent import published
from tools.opponent.case import Case, NotClear

SHARD = 20_000  # bytes, for several files
SAVE = """
import sys
from flaxformer_lite import load_pretrained, save_pretrained
model, params = load_pretrained(sys.argv[1])
print("go", flush=True)
try:
    for _ in range(int(sys.argv[4])):
        save_pretrained(sys.argv[2], model, params, shard_bytes=int(sys.argv[3]))
except (ValueError, OSError) as error:
    sys.exit(f"error: {error}")
"""
CONVERT = """
import sys
from flaxformer_lite import load_pretrained, save_pretrained
loaded = load_pretrained(sys.argv[1])
print("go", flush=True)
save_pretrained(sys.argv[2], *loaded, shard_bytes=int(sys.argv[3]))
"""


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns, in turn, a killed save, a killed conversion, and two at once."""
    old = published.make(folder, 0)
    new = published.make(folder, 1)
    made = []
    for number in range(count):
        own = folder / f"at{number}"
        instant = rng.uniform(0, 1.0)
        match number % 4:
            case 0 | 1:
                run = functools.partial(_killed, SAVE, old, new, own, instant)
                label = f"kill -9 save_pretrained after {instant:.2f} s"
            case 2:
                run = functools.partial(_killed, CONVERT, None, new, own, 2 * instant)
                label = f"kill -9 convert after {2 * instant:.2f} s"
            case _:
                run = functools.partial(_two, CONVERT if number % 8 > 3 else SAVE, old, new, own)
                label = "two at once"
        made.append(Case(kind, f"{number}: {label}", run, limit=180))
    return made


def _killed(program: str, old: Path | None, new: Path, own: Path, instant: float) -> None:
    own.mkdir()
    if old is not None:
        shutil.copytree(_saved(old, own.parent), own / "model")
    process = _start(program, new, own / "model", times=10**6)
    process.stdout.readline()
    time.sleep(instant)
    process.kill()
    process.wait()
    there = (own / "model").exists()
    allowed = {_content(new), _content(old) if old is not None else None}
    if (_loaded(own / "model") if there else None) not in allowed:
        raise NotClear(
            f"left {sorted(path.name for path in own.rglob('*'))}, neither the old nor the new"
            " model"
        )


def _two(program: str, old: Path, new: Path, own: Path) -> None:
    own.mkdir()
    both = [_start(program, source, own / "model", times=5) for source in (old, new)]
    told = [process.communicate(timeout=150)[1] for process in both]
    won = [
        source for source, process in zip((old, new), both, strict=True) if process.returncode == 0
    ]
    if bad := [words for words in told if "Traceback" in words]:
        raise NotClear(f"a traceback: {bad[0][-200:]!r}")
    found = _loaded(own / "model")
    if found not in {_content(source) for source in won}:
        raise NotClear(f"{len(won)} report success, and the directory holds another model")
    if left := [path.name for path in own.iterdir() if path.name != "model"]:
        raise NotClear(f"leaves {left}")


def _start(program: str, source: Path, target: Path, times: int) -> subprocess.Popen:
    line = [sys.executable, "-c", program, str(source), str(target), str(SHARD), str(times)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _saved(source: Path, folder: Path) -> Path:
    """Returns the source as several files, converted once."""
    made = folder / f"{source.name}-sharded"
    if not made.exists():
        from flaxformer_lite import load_pretrained, save_pretrained

        model, params = load_pretrained(source)
        own = made.with_name(f"{made.name}-{time.monotonic_ns()}")
        save_pretrained(own, model, params, shard_bytes=SHARD)
        if not made.exists():
            own.rename(made)
    return made


@functools.cache
def _content(source: Path) -> str:
    return _loaded(source)


def _loaded(where: Path) -> str:
    """Hashes the parameters of a directory, however many files hold them."""
    import numpy as np
    from flax.traverse_util import flatten_dict

    from flaxformer_lite import load_pretrained

    try:
        _, params = load_pretrained(where)
    except Exception as error:
        return f"does not load: {error}"
    digest = hashlib.sha256()
    for path, leaf in sorted(flatten_dict(params, sep="/").items()):
        digest.update(path.encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()
