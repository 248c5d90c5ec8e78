"""Stops train.py at random instants, and checks that no committed checkpoint is lost and the end is
the same.

    python tools/faults.py --kills=50 --folder=runs/faults
    python tools/faults.py --kills=20 --processes=2
    python tools/faults.py --kills=200 --signal=SIGTERM
    python tools/faults.py --adapter --config.train.base=copy

A tiny GPT saves after every step and keeps two checkpoints, so that saves and deletions fill most
of its time; every fifth step it is evaluated, and the best weights are kept apart: each checkpoint
finds those that its record names. With --adapter, LoRA is trained over published weights. Other
flags are the run's own. A third of the stops come at any instant of a start or a run, a
third while a save is seen on disk, a third while a deletion may be. Of several processes one is
killed, and the others must end by themselves. After any signal but SIGKILL, the run has saved and
exits with 0, or ends at once with the code of the signal.
"""

import argparse
import collections
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
AIMS = ("any instant", "a save", "a deletion")
PEER_TIMEOUT = 10  # seconds until a killed process is missed
PATIENCE = 120  # seconds in which a run that uses less than this of a core counts as hanging
IDLE = 0.02
LONGEST = 1800  # CPU seconds after which one that does not end counts as hanging too
SETTINGS = {
    "data.length": 32,
    "data.eval_fraction": 0.1,
    "data.tokenizer.name": "bytes",
    "model.d_model": 16,
    "model.mlp_dim": 32,
    "model.decoder_layers": 1,
    "model.dropout": 0.1,
    "model.vocab_size": 0,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.eval_every": 5,
    "train.best": "loss",
    "optimizer.ema": 0.9,
    "train.eval_batches": 1,
    "train.checkpoint_every": 1,
    "train.keep": 2,
    "train.sample_tokens": 0,
    "optimizer.schedule": "constant",
}


def commands(
    folder: Path, workdir: Path, steps: int, processes: int = 1, flags: Sequence[str] = ()
) -> list[list[str]]:
    """Returns the command of each process of a run of `steps` steps on a few kilobytes of text."""
    settings = {
        **SETTINGS,
        "data.path": write_text(folder),
        "data.cache": folder / "cache",
        "train.steps": steps,
    }
    settings |= {"mesh.data": processes, "train.accumulate": processes}
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    line = [
        sys.executable,
        "train.py",
        "--config=configs/gpt2_tiny.py",
        f"--workdir={workdir}",
        *overrides,
        *flags,
    ]
    if processes == 1:
        return [line]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        joining = [
            f"--coordinator=127.0.0.1:{probe.getsockname()[1]}",
            f"--num_processes={processes}",
        ]
    return [
        [
            *line,
            *joining,
            f"--process_id={i}",
            f"--peer_timeout={PEER_TIMEOUT}",
        ]
        for i in range(processes)
    ]


def write_text(folder: Path) -> Path:
    """Returns a file of a few kilobytes of text in the folder, written once."""
    text = folder / "text.jsonl"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text(
            "".join(json.dumps({"text": f"{n}: {n * n} {n**3} " * 20}) + "\n" for n in range(120))
        )
    return text


def committed(checkpoints: Path) -> list[int]:
    """Returns the steps of folders with their final names; a restart may rely on the newest."""
    return sorted(int(p.name) for p in checkpoints.glob("*") if p.name.isdigit())


def lacks_best(workdir: Path) -> bool:
    """Returns whether the best weights that the newest checkpoint's record names, or later ones,
    are gone."""
    newest, best = (max(committed(workdir / name), default=0) for name in ("checkpoints", "best"))
    return newest > 0 and record(workdir / "checkpoints" / str(newest))["best"]["step"] > best


def record(checkpoint: Path) -> dict:
    return json.loads((checkpoint / "meta" / "metadata").read_text())


def where(checkpoints: Path, begun: bool) -> str:
    """Infers what a process was doing when it was stopped from the files on disk."""
    if list(checkpoints.glob("*tmp*")):
        return "in a save"
    steps = committed(checkpoints)
    whole = [
        step
        for step in steps
        if (checkpoints / str(step) / "meta" / "metadata").exists()
        and (checkpoints / str(step) / "state" / "manifest.ocdbt").exists()
    ]
    if len(whole) < len(steps) or len(steps) > SETTINGS["train.keep"]:
        return "in a deletion"
    return "in a step" if begun else "in a start"


def wait_for(aim: str, process: subprocess.Popen, checkpoints: Path) -> None:
    """Waits for a random instant that fits the aim, or for the end of the process."""
    if aim == "any instant":
        deadline = time.monotonic() + random.uniform(0, 12)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        return
    after = max(committed(checkpoints), default=0) + random.randint(1, 4)
    until(
        lambda: process.poll() is not None or max(committed(checkpoints), default=0) >= after,
        [process],
    )
    seen = {
        "a save": lambda: list(checkpoints.glob("*tmp*")),
        "a deletion": lambda: len(committed(checkpoints)) > SETTINGS["train.keep"],
    }
    until(lambda: process.poll() is not None or seen[aim](), [process])
    time.sleep(random.uniform(0, 0.02))


def until(seen: Callable[[], object], run: Sequence[Any]) -> bool:
    """Waits until something is seen, for as long as a process of the run is at work; returns
    whether it was seen."""
    used = seconds_used(run)
    looked = time.monotonic()
    while not seen():
        time.sleep(0.001)
        if time.monotonic() - looked > PATIENCE:
            before = used
            used = seconds_used(run)
            looked = time.monotonic()
            if all(
                used[pid] - before[pid] < IDLE * PATIENCE or used[pid] > LONGEST for pid in used
            ):
                return bool(seen())
    return True


def seconds_used(run: Sequence[Any]) -> dict[int, float]:
    """Returns the CPU seconds of each process that lives; no clock tells a hang from a machine with
    much to do."""
    used = {}
    for process in run:
        with contextlib.suppress(psutil.Error):
            used[process.pid] = sum(psutil.Process(process.pid).cpu_times()[:2])
    return used


def stop_once(
    lines: list[list[str]], workdir: Path, aim: str, number: signal.Signals
) -> tuple[str, int, int, str]:
    """Starts the run and sends the signal to one of its processes.

    Returns:
      Where it hit, the newest checkpoint, the step that the run had continued from, and how it
      ended.
    """
    checkpoints = workdir / "checkpoints"
    before = committed(workdir / "checkpoints")
    outputs = [workdir.parent / f"said{i}.txt" for i in range(len(lines))]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "w")) for path in outputs]
        started = [
            subprocess.Popen(line, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            for line, file in zip(lines, files, strict=True)
        ]
        wait_for(aim, started[0], checkpoints)
        random.choice(started).send_signal(number)
        if number == signal.SIGKILL and len(lines) == 1:
            started[0].wait()
        hit = where(checkpoints, "step " in outputs[0].read_text())
        codes = ends(started)
    said = [path.read_text() for path in outputs]
    newest = max([0, *before, *committed(checkpoints)])
    resumed = [
        int(row.split()[-1]) for row in said[0].splitlines() if row.strip().startswith("resuming")
    ]
    outcome = how_it_ended(number, codes, said, newest)
    if outcome is None:
        raise SystemExit(
            f"{number.name}: exit codes {codes}, newest checkpoint {newest}:\n" + "\n".join(said)
        )
    return hit, newest, resumed[0] if resumed else -1, outcome


def ends(run: list[subprocess.Popen]) -> list[int | None]:
    """Returns the exit codes of processes, None of those that hung and had to be killed."""
    until(lambda: all(process.poll() is not None for process in run), run)
    living = [process for process in run if process.poll() is None]
    for process in living:
        process.kill()
        process.wait()
    return [None if process in living else process.returncode for process in run]


def how_it_ended(
    number: signal.Signals, codes: list[int | None], said: list[str], newest: int
) -> str | None:
    """Returns how a run ended after a signal, None if not as it should."""
    if "Traceback" in "".join(said) or "damaged" in said[0] or None in codes:
        return None
    if number == signal.SIGKILL:
        return "killed" if sorted(codes) == [-number, *[1] * (len(codes) - 1)] else None
    if f"stopped after step {newest} and saved" in said[0]:
        saved = 128 + number if number == signal.SIGINT else 0
        return "saved" if saved in codes and set(codes) <= {saved, 0} else None
    return "at once" if set(codes) <= {-number, 128 + number} else None


def run(
    folder: Path,
    kills: int,
    steps: int,
    processes: int = 1,
    number: signal.Signals = signal.SIGKILL,
    flags: Sequence[str] = (),
) -> None:
    """Stops a run `kills` times, lets it end, and compares it with an uninterrupted one; exits with
    1 on any loss."""
    workdir = folder / "stopped"
    lost = 0
    best_lost = 0
    last = 0
    hits = collections.Counter()
    outcomes = collections.Counter()
    for count in range(1, kills + 1):
        if last >= steps - 8:
            raise SystemExit(
                f"the run came to step {last} of {steps} after {count - 1} kills; give it more"
                " --steps."
            )
        lines = commands(folder, workdir, steps, processes, flags)
        hit, newest, resumed, outcome = stop_once(lines, workdir, AIMS[(count - 1) % 3], number)
        lost += resumed not in (-1, last)
        best_lost += lacks_best(workdir)
        last = newest
        hits[hit] += 1
        outcomes[outcome] += 1
        print(f"{number.name} {count}: {hit}, {outcome}, newest checkpoint {newest}", flush=True)
    workdirs = [workdir, folder / "straight"]
    for at in workdirs:
        running = [
            subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL)
            for line in commands(folder, at, steps, processes, flags)
        ]
        codes = ends(running)
        if any(codes):
            raise SystemExit(f"the run in {at} did not come to its end.")
    last_of = [
        [record(at / name / str(max(committed(at / name)))) for name in ("checkpoints", "best")]
        for at in workdirs
    ]
    stopped, straight = (
        [(one["step"], one["leaves"], one["best"]) for one in records] for records in last_of
    )
    table = {
        number.name: kills,
        **hits,
        **outcomes,
        "committed checkpoints lost": lost,
        "best weights lost": best_lost,
        "end equals the uninterrupted run": "yes" if stopped == straight else "NO",
    }
    print("\n| " + " | ".join(table) + " |")
    print("|" + "---:|" * len(table))
    print("| " + " | ".join(map(str, table.values())) + " |")
    if lost or best_lost or stopped != straight:
        raise SystemExit(1)


def adapter_flags(folder: Path) -> list[str]:
    """Publishes the weights of a run of one step; returns the flags that train LoRA over them."""
    published = folder / "published"
    for line in commands(folder, folder / "base", 1):
        subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    convert = ["-m", "flaxformer_lite", "convert", str(folder / "base"), str(published)]
    subprocess.run([sys.executable, *convert], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    values = {"train.init_from": published, "model.adapter.name": "lora", "model.adapter.rank": 2}
    return [f"--config.{name}={value}" for name, value in values.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--processes", type=int, default=1, help="with as many microbatches")
    parser.add_argument("--adapter", action="store_true", help="train LoRA over frozen weights")
    parser.add_argument(
        "--signal", type=signal.Signals.__getitem__, default=signal.SIGKILL, metavar="NAME"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / f"faults-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    options, rest = parser.parse_known_args()
    if options.adapter:
        rest = [*adapter_flags(options.folder.absolute()), *rest]
    run(
        options.folder.absolute(),
        options.kills,
        options.steps,
        options.processes,
        options.signal,
        rest,
    )
