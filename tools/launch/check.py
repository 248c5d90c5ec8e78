"""Runs the recipes of launch/ on this machine, and compares each end with that of a run that
nothing disturbs.

    apt-get install slurm-wlm openmpi-bin        # as root
    python -m tools.launch.check slurm
    python -m tools.launch.check mpi
    python -m tools.launch.check pods

Slurm is one of two nodes (slurm_one_machine.sh): `srun` trains with two tasks; a job of
launch/slurm.sbatch meets its time limit; another is requeued in mid-run. mpirun starts two
processes. Pods are the two containers of launch/jobset_gpu.yaml as two processes with their command
and environment; one gets the SIGTERM of a drained node, and both start again.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tools.faults import ROOT, SETTINGS, committed, ends, record, until, write_text

ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
SHOWN = re.compile(
    r"  devices |resuming|stopped after|: stopping after|held out: |^error|notice|slurmstepd"
)
LONGEST = 1200  # seconds for which a job may write nothing


def flags(folder: Path, workdir: Path, steps: int) -> list[str]:
    """Returns the flags of a tiny GPT, which replace those of a recipe."""
    settings = {
        **SETTINGS,
        "data.path": write_text(folder),
        "data.cache": folder / "cache",
        "train.steps": steps,
    }
    settings |= {
        "mesh.data": 2,
        "mesh.fsdp": 1,
        "train.accumulate": 2,
        "train.best": "",
        "train.log_every": steps // 20,
    }
    settings |= {"train.eval_every": steps, "train.checkpoint_every": steps // 3}
    own = [f"--config.{name}={value}" for name, value in settings.items()]
    return ["--config=configs/gpt2_tiny.py", f"--workdir={workdir}", *own]


def said(command: list[str], log: Path | None = None, code: int = 0) -> str:
    """Runs a command and shows it without its flags of the config; returns what it printed, which
    also goes to `log`."""
    print("$", shlex.join(word for word in command if not word.startswith("--config.")), flush=True)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if log:
        log.write_text(done.stdout)
    if done.returncode != code:
        raise SystemExit(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def show(output: str) -> None:
    print(
        "\n".join(f"  {line.strip()[:150]}" for line in output.splitlines() if SHOWN.search(line)),
        flush=True,
    )


def compare(workdir: Path, straight: Path, steps: int) -> None:
    """Prints whether two runs ended with the same parameters and optimizer, bit for bit; ends the
    program if not."""
    assert max(committed(workdir / "checkpoints")) == steps, f"{workdir} did not come to its end"
    ends = [record(at / "checkpoints" / str(steps))["leaves"] for at in (workdir, straight)]
    same = ends[0] == ends[1]
    print(
        f"{workdir.name}: {len(ends[0])} leaves after step {steps}, bit for bit those of"
        f" {straight.name}: {same}\n"
    )
    if not same:
        raise SystemExit(1)


def slurm(folder: Path, steps: int) -> None:
    """Runs srun, a job with a time limit, and a job that is requeued; to be called within a Slurm
    of two nodes."""
    two = ["--nodes=2", "--ntasks-per-node=1"]
    steps, minutes = straight(folder, two, steps)
    for how, limit in (
        ("limit", [f"--time={minutes}", "--signal=TERM@60"]),
        ("requeued", ["--time=300"]),
    ):
        log = folder / f"{how}.out"
        job = [
            "sbatch",
            "--parsable",
            *two,
            "--gpus-per-node=0",
            *limit,
            f"--output={log}",
            "launch/slurm.sbatch",
        ]
        number = said([*job, *flags(folder, folder / how, steps)]).strip()
        if how == "requeued":
            wait(log, lambda: "  loss " in log.read_text())  # noqa: B023
            said(["scontrol", "requeue", number])
        queue = ["squeue", "--noheader", "--format=%A"]
        wait(log, lambda: number not in subprocess.check_output(queue, text=True).split())  # noqa: B023
        show(log.read_text())
        starts = log.read_text().count("  devices ")
        print(f"{how}: {starts} starts")
        assert starts > 1, "the job was never stopped; give it more --steps"
        compare(folder / how, folder / "srun", steps)


def straight(folder: Path, two: list[str], steps: int) -> tuple[int, int]:
    """Runs srun for so many steps that a job is stopped by its time limit, in minutes, but not
    while it starts."""
    while True:
        train = ["flaxformer_lite", "train", *flags(folder, folder / "srun", steps)]
        begun = time.monotonic()
        show(said(["srun", *two, *train], folder / "srun.out"))
        took = time.monotonic() - begun
        records = map(json.loads, (folder / "srun" / "metrics.jsonl").read_text().splitlines())
        first = next(record for record in records if record["split"] == "train")
        start = sum(value for name, value in first.items() if name.startswith("seconds_"))
        minutes = 3 + round(1.2 * start) // 60  # Slurm's signal comes one to two minutes before
        if took > 60 * minutes:
            return steps, minutes
        shutil.rmtree(folder / "srun")
        steps *= 2


def mpi(folder: Path, steps: int) -> None:
    """Runs mpirun with two processes, and two that are started by flags to compare with."""
    train = ["flaxformer_lite", "train"]
    start = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-x",
        "TERM=dumb",
        "-np",
        "2",
        *train,
    ]
    show(said([*start, *flags(folder, folder / "mpirun", steps)], folder / "mpirun.out"))
    run_pods(folder, folder / "flags", steps, stop=False)
    compare(folder / "mpirun", folder / "flags", steps)


def pods(folder: Path, steps: int) -> None:
    """Runs the containers of launch/jobset_gpu.yaml, drains a node, and runs the pods that JobSet
    would make anew."""
    run_pods(folder, folder / "undisturbed", steps, stop=False)
    run_pods(folder, folder / "drained", steps, stop=True)
    run_pods(folder, folder / "drained", steps, stop=False)
    compare(folder / "drained", folder / "undisturbed", steps)


def run_pods(folder: Path, workdir: Path, steps: int, *, stop: bool) -> None:
    """Runs the recipe's command in two processes; with `stop`, sends SIGTERM to the second and
    expects 75 of both."""
    job = yaml.safe_load((ROOT / "launch/jobset_gpu.yaml").read_text())["spec"]["replicatedJobs"][
        0
    ]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        here = (  # the service's name is not known here
            f"--coordinator=127.0.0.1:{probe.getsockname()[1]}"
        )
    recipe = container["args"][0].replace("gs://BUCKET/xl", str(workdir))
    script = f"{recipe} {shlex.join([*flags(folder, workdir, steps), here])}"
    logs = [workdir.with_suffix(f".{i}.out") for i in range(job["completions"])]
    started = [
        subprocess.Popen(
            [*container["command"], script],
            cwd=ROOT,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env={**ENVIRONMENT, "JOB_COMPLETION_INDEX": str(i)},
        )
        for i, log in enumerate(logs)
    ]
    if stop:
        until(lambda: "  loss " in logs[0].read_text(), started)
        started[1].send_signal(signal.SIGTERM)
    codes = ends(started)
    show("".join(log.read_text() for log in logs))
    print(f"exit codes {codes}")
    if set(codes) != {75 if stop else 0}:
        raise SystemExit("\n".join(log.read_text() for log in logs))


def wait(log: Path, seen: Callable[[], object]) -> None:
    """Waits until something is seen, for as long as a job writes to its log."""
    size = 0
    deadline = time.monotonic() + LONGEST
    while not (log.exists() and seen()):
        assert time.monotonic() < deadline, "a job takes too long"
        time.sleep(0.5)
        if log.exists() and log.stat().st_size != size:
            size = log.stat().st_size
            deadline = time.monotonic() + LONGEST


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("slurm", "mpi", "pods"))
    parser.add_argument(
        "--steps", type=int, default=0, help="enough for a minute or two (default: by kind)"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / f"launch-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    options = parser.parse_args()
    place = options.folder.absolute()
    if options.what == "slurm" and "SLURM_CONF" not in os.environ:
        os.execvp(
            "tools/launch/slurm_one_machine.sh",
            [
                "tools/launch/slurm_one_machine.sh",
                str(place / "slurm"),
                sys.executable,
                "-m",
                "tools.launch.check",
                *sys.argv[1:],
                f"--folder={place}",
            ],
        )
    place.mkdir(parents=True, exist_ok=True)
    {"slurm": slurm, "mpi": mpi, "pods": pods}[options.what](
        place, options.steps or (1500 if options.what == "slurm" else 300)
    )
