"""Kills train.py with kill -9 at random instants, and checks that no committed checkpoint is lost and the end is the same.

    python tools/faults.py --kills=50 --folder=runs/faults

A tiny GPT saves after every step and keeps two checkpoints, so that saves and deletions fill most of its time. A third
of the kills come at any instant of a start or a run, a third while a save is seen on disk, a third while a deletion may
be.
"""

import argparse
import collections
import json
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
AIMS = ("any instant", "a save", "a deletion")
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
    "train.eval_every": 100000,
    "train.eval_batches": 1,
    "train.checkpoint_every": 1,
    "train.keep": 2,
    "train.sample_tokens": 0,
    "mesh.data": 1,
    "optimizer.schedule": "constant",
}


def command(folder: Path, workdir: Path, steps: int) -> list[str]:
    """Returns the command of a run of `steps` steps on a few kilobytes of text."""
    text = folder / "text.jsonl"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text("".join(json.dumps({"text": f"{n}: {n * n} {n**3} " * 20}) + "\n" for n in range(120)))
    settings = {**SETTINGS, "data.path": text, "data.cache": folder / "cache", "train.steps": steps}
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    return [sys.executable, "train.py", "--config=configs/gpt2_tiny.py", f"--workdir={workdir}", *overrides]


def committed(checkpoints: Path) -> list[int]:
    """Returns the steps of folders with their final names; a restart may rely on the newest."""
    return sorted(int(p.name) for p in checkpoints.glob("*") if p.name.isdigit())


def where(checkpoints: Path, begun: bool) -> str:
    """Infers what a process was doing when it was killed from the files on disk."""
    if list(checkpoints.glob("*tmp*")):
        return "in a save"
    steps = committed(checkpoints)
    whole = [step for step in steps if (checkpoints / str(step) / "meta" / "metadata").exists()
             and (checkpoints / str(step) / "state" / "manifest.ocdbt").exists()]  # fmt: skip
    if len(whole) < len(steps) or len(steps) > SETTINGS["train.keep"]:
        return "in a deletion"
    return "in a step" if begun else "in a start"


def kill_once(line: list[str], workdir: Path, aim: str) -> tuple[str, int, int]:
    """Starts the run and kills it: (where it hit, newest checkpoint at that instant, step that it had continued from)."""
    checkpoints, before = workdir / "checkpoints", committed(workdir / "checkpoints")
    newest = before[-1] if before else 0
    with open(workdir.parent / "said.txt", "w+") as said:
        process = subprocess.Popen(line, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        if aim == "any instant":
            deadline = time.monotonic() + random.uniform(0, 12)
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.01)
        else:
            after = newest + random.randint(1, 4)
            while process.poll() is None and max(committed(checkpoints), default=0) < after:
                time.sleep(0.002)
            seen = {
                "a save": lambda: list(checkpoints.glob("*tmp*")),
                "a deletion": lambda: len(committed(checkpoints)) > 2,
            }
            while process.poll() is None and not seen[aim]():
                pass
            time.sleep(random.uniform(0, 0.02))
        process.kill()
        process.wait()
        said.seek(0)
        text = said.read()
    newest = max([newest, *committed(checkpoints)])
    if "error:" in text or "Traceback" in text or "damaged" in text:
        raise SystemExit(f"a restart did not go through:\n{text}")
    resumed = [int(row.split()[-1]) for row in text.splitlines() if row.strip().startswith("resuming")]
    return where(checkpoints, "resuming" in text or "step " in text), newest, resumed[0] if resumed else -1


def run(folder: Path, kills: int, steps: int) -> None:
    """Kills a run `kills` times, lets it end, and compares it with an uninterrupted one; exits with 1 on any loss."""
    workdir, lost, hits = folder / "killed", 0, collections.Counter()
    last = 0
    for number in range(kills):
        if last >= steps - 8:
            raise SystemExit(f"the run came to step {last} of {steps} after {number} kills; give it more --steps.")
        hit, newest, resumed = kill_once(command(folder, workdir, steps), workdir, AIMS[number % 3])
        lost += resumed not in (-1, last)
        last = newest
        hits[hit] += 1
        print(f"kill {number + 1}: {hit}, newest checkpoint {newest}", flush=True)
    ends = [workdir, folder / "straight"]
    for at in ends:
        subprocess.run(command(folder, at, steps), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    leaves = [json.loads((at / "checkpoints" / str(steps) / "meta" / "metadata").read_text())["leaves"] for at in ends]
    equal = leaves[0] == leaves[1]
    print("\n| kills | " + " | ".join(hits) + " | committed checkpoints lost | end equals the uninterrupted run |")
    print("|---:" * (len(hits) + 2) + "|---|")
    print(f"| {kills} | " + " | ".join(map(str, hits.values())) + f" | {lost} | {'yes' if equal else 'NO'} |")
    if lost or not equal:
        raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / f"faults-{time.strftime('%Y%m%d-%H%M%S')}")
    options = parser.parse_args()
    run(options.folder.absolute(), options.kills, options.steps)
