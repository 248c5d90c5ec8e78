"""Kills runs whose workdir is in an object store at random requests, and checks that nothing saved
is lost.

    python -m tools.faults_remote --kills=20 --folder=runs/faults-remote

The stores are the stand-ins of tests/object_stores.py on this machine. The tiny GPT of
tools/faults.py saves after every step and keeps two checkpoints; nearly all of its time goes to
requests, and after a random number of them it is killed by SIGKILL: while parts, a record or
metrics are written, old checkpoints are deleted, or the lock is taken. Each start has a disk of its
own, as on a fresh machine. In the end the state must equal that of an uninterrupted run on a disk,
bit for bit, and metrics.jsonl hold each step once. A run is forked from a process that has imported
the package, which saves its imports.
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import re
import runpy
import sys
import tempfile
import time
from pathlib import Path

from tests.object_stores import Store, amazon, google, led
from tools.faults import ROOT, commands, until

IMPORTS = [
    "flaxformer_lite.cli.launch",
    "orbax.checkpoint",
    "tensorstore",
    "tensorboardX",
]
KILLED = 9  # the signal, and the most requests of a process before it
LONGEST = 200


def train(line: list[str], said: Path) -> None:
    """Runs a command of tools/faults.py in this process, which has forked."""
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own
        sys.argv = line[1:]
        runpy.run_path("train.py", run_name="__main__")
        # JAX registers this with atexit, which multiprocessing leaves out.
        import jax

        jax.distributed.shutdown()


def committed(store: Store) -> list[int]:
    """Returns the steps whose record is in the store."""
    found = [re.fullmatch(r"run/checkpoints/(\d+)/meta/metadata", name) for name in store.objects()]
    return sorted(int(one[1]) for one in found if one)


def where(store: Store) -> str:
    """Infers from the objects what a run was doing when it was killed."""
    steps = committed(store)
    seen = {
        int(one[1])
        for name in store.objects()
        if (one := re.match(r"run/checkpoints/(\d+)/", name))
    }
    if not steps:
        return "in a start"
    if max(seen) > max(steps):
        return "in a save"
    return "in a deletion" if len(seen) > 2 else "between saves"


def stop_once(
    store: Store, lines: list[list[str]], said: list[Path], requests: int | None
) -> list[int | None]:
    """Starts the processes of a run, kills one of them after so many requests, and waits for all;
    returns exit codes."""
    begun = len(store.seen)
    starter = multiprocessing.get_context("forkserver")
    started = [starter.Process(target=train, args=pair) for pair in zip(lines, said, strict=True)]
    for process in started:
        process.start()
    if requests is not None:
        until(
            lambda: (
                len(store.seen) >= begun + requests
                or not all(process.is_alive() for process in started)
            ),
            started,
        )
        random.choice(started).kill()
    until(lambda: not any(process.is_alive() for process in started), started)
    for process in started:  # one that hangs has another exit code than expected
        process.kill()
        process.join()
    time.sleep(0.3)  # what has been sent is answered
    return [process.exitcode for process in started]


def run(store: Store, folder: Path, kills: int, steps: int, processes: int) -> dict:
    """Kills a run `kills` times, and lets it end; returns a row of the table."""
    hits: collections.Counter[str] = collections.Counter()
    said = [folder / f"said{index}.txt" for index in range(processes)]
    lost = 0
    last = 0
    for count in range(kills + 1):
        lines = commands(folder, Path("WORKDIR"), steps, processes)
        lines = [[arg.replace("WORKDIR", f"{store.url}/run") for arg in line] for line in lines]
        requests = random.randint(1, LONGEST * processes) if count < kills else None
        codes = stop_once(store, lines, said, requests)
        outputs = [path.read_text() for path in said]
        resumed = [int(number) for number in re.findall(r"resuming +after step (\d+)", outputs[0])]
        if count < kills and set(codes) == {0}:
            raise SystemExit(f"the run came to its end after {count} kills; give it more --steps.")
        lost += bool(resumed and resumed[0] != last)
        expected = [-KILLED, *[1] * (processes - 1)] if count < kills else [0] * processes
        if re.search("Traceback|damaged", "".join(outputs)) or sorted(codes, key=str) != sorted(
            expected, key=str
        ):
            raise SystemExit(
                f"{store.url}, start {count + 1}, exit codes {codes}:\n" + "\n".join(outputs)
            )
        last = max([last, *committed(store)])
        hits[where(store)] += count < kills
        print(
            f"{store.url} {count + 1}: {where(store)}, {requests} requests, newest checkpoint"
            f" {last}",
            flush=True,
        )
    if not (folder / "disk").exists():
        stop_once(store, commands(folder, folder / "disk", steps, processes), said, None)
    whole = [
        json.loads(line)["step"]
        for line in store.objects()["run/metrics.jsonl"].splitlines()
        if b'"train"' in line
    ]
    ends = []
    for name in ("checkpoints", "best"):
        on_disk = max((folder / "disk" / name).glob("[0-9]*"), key=lambda path: int(path.name))
        expected = json.loads((on_disk / "meta/metadata").read_text())
        found = json.loads(store.objects()[f"run/{name}/{on_disk.name}/meta/metadata"])
        ends.append(all(expected[field] == found[field] for field in ("step", "leaves", "best")))
    held = any(name == "run/.lock" for name in store.objects())
    return {
        "store": store.url,
        "kills": kills,
        **{
            name: hits[name]
            for name in ("in a start", "in a save", "in a deletion", "between saves")
        },
        "committed checkpoints lost": lost,
        "end equals a disk's": "yes" if all(ends) else "NO",
        "steps in metrics.jsonl once": "yes" if whole == [*range(1, steps + 1)] else "NO",
        "lock left": "YES" if held else "no",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--processes", type=int, default=1, help="one of them is killed, and the others must end"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / f"faults-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # else a start begins itself anew
    os.environ |= {
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
        "JAX_PLATFORMS": "cpu",
    }
    rows = []
    with google() as one, amazon() as other, led(one), led(other):
        multiprocessing.set_forkserver_preload(IMPORTS)
        for store in (one, other):
            rows.append(run(store, folder, options.kills, options.steps, options.processes))
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    print("\n".join("| " + " | ".join(map(str, row.values())) + " |" for row in rows))
    if any(
        {"NO", "YES"} & {str(value) for value in row.values()} or row["committed checkpoints lost"]
        for row in rows
    ):
        raise SystemExit(1)
