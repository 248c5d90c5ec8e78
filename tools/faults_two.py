"""Brings faults on a run of two processes at chosen instants, and lists what each process says and
what is lost.

    # as root: the full disk is a small tmpfs
    python tools/faults_two.py --folder=runs/faults-two

Each fault meets the run that the one before it left. A process is killed before it joins the other,
while the step compiles, in mid-step, during an evaluation, and during a save. The disk is filled
before a save and during one. The newest checkpoint is damaged in a data file, in its record, by a
missing file; then all are. Wanted of each process that lives: at most one error, which is the last
line of its stderr, below what JAX prints of a lost process, no Python stack, and an exit code that
is not 0; no committed checkpoint lost; and in the end the parameters of an uninterrupted run.
"""

import argparse
import contextlib
import functools
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools import faults

SETTINGS = {
    "train.best": "",
    "train.eval_batches": 60,
    "train.checkpoint_every": 5,
    "train.eval_every": 5,
}
CAUSES = re.compile(r"^(error|waiting for|tokenizing|SIGTERM: stopping)|^$")
DAMAGES = ("flipped bits", "a damaged record", "a missing file")  # of the newest checkpoint
DISK = 6 << 20  # bytes of the small disk


def start(folder: Path, workdir: Path, steps: int) -> list[subprocess.Popen]:
    """Starts both processes; their stdout and stderr go to files beside the workdir."""
    own = [f"--config.{name}={value}" for name, value in SETTINGS.items()]
    run = []
    for i, line in enumerate(faults.commands(folder, workdir, steps, processes=2)):
        with open(folder / f"out{i}", "w") as out, open(folder / f"err{i}", "w") as err:
            run.append(subprocess.Popen([*line, *own], cwd=faults.ROOT, stdout=out, stderr=err))
    return run


def reached(folder: Path, workdir: Path, instant: str, run: list[subprocess.Popen]) -> None:
    """Waits for an instant of a run, or the end of one of its processes."""
    out = folder / "out0"
    checkpoints = workdir / "checkpoints"
    first = max(faults.committed(checkpoints), default=0) + 1

    def until(seen: Callable[[], object]) -> None:
        faults.until(lambda: seen() or any(process.poll() is not None for process in run), run)

    if instant == "the start":
        return
    if instant == "joining":
        time.sleep(random.uniform(1, 3))
        return
    if instant == "compiling":
        (workdir / ".lock").unlink(missing_ok=True)
        until((workdir / ".lock").exists)
        time.sleep(1)
        return
    until(lambda: re.search(rf"^step {first + 7}/", out.read_text(), re.MULTILINE))
    if instant == "evaluating":
        until(lambda: re.search(rf"^step {first + 9}/.*  loss", out.read_text(), re.MULTILINE))
        time.sleep(0.2)
    elif instant == "saving":
        until(lambda: list(checkpoints.glob("*tmp*")))


def kill(index: int, run: list[subprocess.Popen]) -> None:
    run[index].kill()


def fill(disk: Path) -> None:
    """Leaves no free byte on a disk."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def damage(checkpoints: Path, how: str) -> None:
    steps = faults.committed(checkpoints)
    for step in steps if how == "all damaged" else steps[-1:]:
        at = checkpoints / str(step)
        if how == "a missing file":
            # the tree that joins what the processes wrote
            next((at / "state" / "d").iterdir()).unlink()
            continue
        # Of each file of data: some hold only what later ones replaced, and their bits are of no
        # account.
        data = sorted((at / "state" / "ocdbt.process_1" / "d").iterdir())
        for path in [at / "meta" / "metadata"] if how == "a damaged record" else data:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)


def judged(folder: Path, run: list[subprocess.Popen], killed: int | None) -> tuple[str, str, bool]:
    """Returns the exit codes, what the living processes said on stderr, and whether that is as it
    should be."""
    codes = faults.ends(run)
    said = [(folder / f"err{i}").read_text() for i in (0, 1)]
    living = [i for i in (0, 1) if i != killed]
    errors = [[line for line in said[i].splitlines() if line.startswith("error")] for i in living]
    last = [said[i].rstrip().rpartition("\n")[2] for i in living]
    good = (
        all(CAUSES.search(line) for line in last)
        and not any("Traceback" in said[i] or "Fatal Python error" in said[i] for i in living)
        and all(codes[i] in (0, 1, 2) for i in living)
        and all(len(lines) <= 1 for lines in errors)
    )
    good &= any(errors) == any(codes[i] for i in living)
    words = " / ".join(
        f"{i}: {' '.join(lines)[:170] or '-'}" for i, lines in zip(living, errors, strict=True)
    )
    return ", ".join(map(str, codes)), words, good


class Matrix:
    """Brings one fault after the other on the run in `workdir`, and prints a row of a table for
    each."""

    def __init__(self, folder: Path, disk: Path, steps: int):
        self.folder = folder
        self.disk = disk
        self.steps = steps
        self.good = list[bool]()
        self.workdir = disk / "run"
        self.checkpoints = disk / "run" / "checkpoints"
        print(
            "| fault | instant | exit codes | the living say | checkpoint | fine |\n|" + "---|" * 6,
            flush=True,
        )

    def bring(
        self,
        what: str,
        instant: str,
        act: Callable[[list[subprocess.Popen]], object],
        killed: int | None = None,
    ):
        """Starts the run, acts on it at an instant, and judges its end."""
        before = max(faults.committed(self.checkpoints), default=0)
        run = start(self.folder, self.workdir, self.steps)
        reached(self.folder, self.workdir, instant, run)
        act(run)
        codes, words, good = judged(self.folder, run, killed)
        for index in (0, 1):
            shutil.copy(
                self.folder / f"err{index}", self.folder / f"{len(self.good):02}-err{index}"
            )
        (self.disk / "filler").unlink(missing_ok=True)
        newest = max(faults.committed(self.checkpoints), default=0)
        notices = re.findall(
            r"notice: (checkpoint of step \d+ is damaged.*?)[;)]",
            (self.folder / "out0").read_text(),
        )
        words += "".join(f" ({notice})" for notice in notices)
        told = len(notices) == (what in DAMAGES) and ("error: no checkpoint in" in words) == (
            what == "all damaged"
        )
        self.good.append(good and newest >= before and told)
        print(
            f"| {what} | {instant} | {codes} | {words} | {before} -> {newest} | {self.good[-1]} |",
            flush=True,
        )

    def bring_all(self) -> None:
        """Brings every fault at every instant."""
        for instant in ("joining", "compiling", "stepping", "evaluating", "saving"):
            for index in (0, 1):
                self.bring(f"kill -9 of {index}", instant, functools.partial(kill, index), index)
        for instant in ("stepping", "saving"):
            self.bring("a full disk", instant, lambda _: fill(self.disk))
        for how in DAMAGES:
            damage(self.checkpoints, how)
            self.bring(how, "stepping", lambda run: run[0].terminate())
            shutil.rmtree(self.checkpoints / "damaged", ignore_errors=True)
        shutil.copytree(self.checkpoints, self.folder / "whole")
        damage(self.checkpoints, "all damaged")
        self.bring("all damaged", "the start", lambda _: None)
        shutil.rmtree(self.checkpoints)
        shutil.copytree(self.folder / "whole", self.checkpoints)

    def compare(self) -> None:
        """Lets the run come to its end, and compares it with one that nothing has disturbed."""
        ends = []
        for workdir in (self.workdir, self.disk / "straight"):
            codes = faults.ends(start(self.folder, workdir, self.steps))
            assert codes == [0, 0], codes
            ends.append(faults.record(workdir / "checkpoints" / str(self.steps))["leaves"])
        self.good.append(ends[0] == ends[1])
        print(f"\nthe end, bit for bit that of an undisturbed run: {self.good[-1]}", flush=True)


def main(folder: Path, steps: int) -> None:
    disk = folder / "disk"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
    try:
        matrix = Matrix(folder, disk, steps)
        matrix.bring_all()
        matrix.compare()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    sys.exit(not all(matrix.good))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument(
        "--folder",
        type=Path,
        default=faults.ROOT / "runs" / f"faults-two-{time.strftime('%Y%m%d-%H%M%S')}",
    )
    options = parser.parse_args()
    main(options.folder.absolute(), options.steps)
