"""Signals at random instants of a start, a compilation, a step and a save of `train`."""

import functools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools.opponent import settings
from tools.opponent.case import Case, NotClear

PATIENCE = 60  # seconds until a run that was asked to end has ended
STEPS = 1_000_000  # more than it can take
SENT = (("SIGTERM",), ("SIGINT",), ("SIGHUP",), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"))
ENDS = {"SIGTERM": (0, 143), "SIGINT": (130,), "SIGHUP": (0, 129, 143)}  # 0: saved


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns a case for each instant; a first run tells how long a start takes and fills the
    caches."""
    began = time.monotonic()
    whole = subprocess.run(_line(folder, folder / "whole", 20), capture_output=True, text=True)
    if whole.returncode:
        raise RuntimeError(f"the run does not train: {whole.stderr[-400:]}")
    lasts = time.monotonic() - began
    made = []
    for number in range(count):
        sent = SENT[number % len(SENT)]
        instant = rng.uniform(0, 1.2)
        run = functools.partial(_run, folder, number, sent, instant * lasts)
        made.append(
            Case(
                kind,
                f"{'+'.join(sent)} at {instant:.2f} of a start of {lasts:.1f} s",
                run,
                limit=2 * PATIENCE,
            )
        )
    return made


def _line(folder: Path, workdir: Path, steps: int) -> list[str]:
    values = settings.RUN | {
        "data.path": settings.text(folder),
        "data.cache": folder / "cache",
        "train.steps": steps,
    }
    return [
        sys.executable,
        "-m",
        "flaxformer_lite",
        "train",
        f"--workdir={workdir}",
        *settings.arguments("gpt2_tiny", values),
    ]


def _run(folder: Path, number: int, sent: tuple[str, ...], instant: float) -> None:
    workdir = folder / f"run{number}"
    process = subprocess.Popen(
        _line(folder, workdir, STEPS), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    time.sleep(instant)
    begun = (workdir / "metrics.jsonl").exists()
    for name in sent:
        process.send_signal(getattr(signal, name))
        time.sleep(0.2)
    try:
        _, told = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NotClear(
            f"the run goes on for {PATIENCE} s, as if there had been no signal"
        ) from None
    code = process.returncode
    # before Python could take the signal
    by_default = code == -getattr(signal, sent[0]) and not begun
    if code not in ENDS[sent[0]] and not by_default:
        raise NotClear(f"exit code {code}: {told[-200:]!r}")
    if "Traceback" in told:
        raise NotClear(f"a traceback: {told[-200:]!r}")
    if code == 0 and _newest(workdir) is None:
        raise NotClear("says that it has saved, and has not")


def _newest(workdir: Path) -> int | None:
    """Returns the step of the newest checkpoint that has its record."""
    steps = [int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
    whole = [step for step in steps if (workdir / f"checkpoints/{step}/meta/metadata").is_file()]
    for step in whole:
        json.loads((workdir / f"checkpoints/{step}/meta/metadata").read_text())
    return max(whole, default=None)
