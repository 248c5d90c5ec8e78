"""Measures the start: imports, help, the first step of a real run, compile time against depth,
waiting for data.

    python -m benchmarks.start
    python -m benchmarks.start --rounds=1 --out=/tmp/bench

Every start is a separate process, with caches in a temporary folder; compared starts take turns.
The results are stored with those of benchmarks/run.py.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.cases import Case
from flaxformer_lite.contrib.plan.environment import ENVIRONMENT

ROOT = Path(__file__).parents[1]
RUN = [
    "train.py",
    "--config=configs/demo.py",
    "--config.train.log_every=1",
    "--config.train.sample_tokens=0",
]
STEPS = 40
DEPTHS = (12, 24, 48)
POD = "llama_7b on v5e:16x16"
# Narrow, so that the compiled step runs in no time.
DEEP = Case("gpt2", "train", 4, 128, d_model=64, heads=1, mlp_dim=256, vocab=512)


def imports(rounds: int) -> list[dict]:
    """Compares this package's import with Flax's: the names only, and everything needed to build a
    model."""
    lines = (
        "import flax",
        "import flaxformer_lite",
        "from flaxformer_lite import build_model, generate",
    )
    times = {line: [] for line in lines}
    for _ in range(rounds):
        for line in lines:
            times[line].append(timed(["-c", line]))
    rows = [row(f"`{line}`, CPU", [cpu for _, cpu in times[line]]) for line in lines]
    for line in lines[1:]:
        for i, clock in enumerate(("wall", "CPU")):
            ratios = [
                ours[i] / flax[i] for ours, flax in zip(times[line], times[lines[0]], strict=True)
            ]
            rows.append(row(f"`{line}` / `import flax`, {clock}", ratios, "x", most=1.5))
    return rows


def help_text(rounds: int) -> list[dict]:
    return [
        row(
            "`train.py --help`",
            [timed(["train.py", "--help"], code=1)[0] for _ in range(rounds)],
            most=3.0,
        )
    ]


def first_step(rounds: int) -> list[dict]:
    """Times the first step of `train.py` with its first evaluation: at the very first start,
    compiling, and with a cache.

    The very first start continues training, to measure how long it waits for data.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        fresh, records = begin(Path(folder) / "fresh", cache, STEPS)
        cold = []
        warm = []
        for number in range(rounds):
            shutil.rmtree(cache / "compiled")
            cold.append(begin(Path(folder) / f"cold{number}", cache)[0])
            warm.append(begin(Path(folder) / f"warm{number}", cache)[0])
    records = [r for r in records if "data_wait" in r]
    waited = sum(r["data_wait"] * r["step_seconds"] for r in records) / sum(
        r["step_seconds"] for r in records
    )
    ratios = [after / before for after, before in zip(warm, cold, strict=True)]
    return [
        row("first step of the demo: text to be tokenized, nothing compiled", [fresh]),
        row("the same, tokenized before", cold),
        row("the same, tokenized and compiled before", warm),
        row("compiled before / not", ratios, "x", most=1.0),
        row(f"share of {STEPS} steps spent waiting for data", [waited], "%", most=0.01),
    ]


def begin(workdir: Path, cache: Path, steps: int = 1) -> tuple[float, list[dict]]:
    """Returns seconds from the start of `train.py` to the record of its first step, and the records
    of `steps` steps."""
    command = [sys.executable, *RUN, f"--workdir={workdir}", f"--config.data.cache={cache}"]
    file = workdir / "metrics.jsonl"
    first = 0.0
    with open(os.devnull, "w") as null:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(FLAXFORMER_LITE_CACHE=str(cache)), stdout=null
        )
        while len(records := trained(file)) < steps:
            if not first and records:
                first = time.perf_counter() - began
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
            time.sleep(0.02)
        first = first or time.perf_counter() - began
        process.kill()
        process.wait()
    return first, records


def trained(file: Path) -> list[dict]:
    """Reads the records of steps so far."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if record["split"] == "train"]


def depths(rounds: int) -> list[dict]:
    """Measures compilation of a scanned GPT's initialization and step against its number of layers,
    without a cache."""
    times = {layers: [] for layers in DEPTHS}
    for _ in range(rounds):
        for layers in DEPTHS:
            said = subprocess.run(
                [sys.executable, "-m", "benchmarks.start", f"--compile={layers}"],
                cwd=ROOT,
                env=environment(),
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            times[layers].append(json.loads(said))
    rows = [
        row(
            f"a fresh state and a compiled step of {n} scanned layers",
            [wall for wall, _ in times[n]],
        )
        for n in DEPTHS
    ]
    for i, clock in enumerate(("wall", "CPU")):
        ratios = [
            deep[i] / flat[i]
            for deep, flat in zip(times[DEPTHS[-1]], times[DEPTHS[0]], strict=True)
        ]
        rows.append(row(f"{DEPTHS[-1]} layers / {DEPTHS[0]}, {clock}", ratios, "x", most=1.2))
    return rows


def compile_scanned(layers: int) -> tuple[float, float]:
    """Returns wall and CPU seconds from a config to a fresh state and a compiled train step, after
    all imports."""
    import jax

    from benchmarks import ours
    from flaxformer_lite import sharding
    from flaxformer_lite.runs.start.initial_state import initial_state
    from flaxformer_lite.training import program

    case = dataclasses.replace(DEEP, layers=layers)
    cfg = ours.experiment(case)
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, scan=True))
    example = jax.tree.map(lambda x: x[0], ours.rows(case))
    wall = time.perf_counter()
    cpu = time.process_time()
    ready = program.build(cfg, sharding.build_mesh(cfg.mesh), example)
    jax.block_until_ready(initial_state(ready))
    ready.train_step.lower(ready.target, ready.batch).compile()
    return time.perf_counter() - wall, time.process_time() - cpu


def pod(rounds: int) -> list[dict]:
    """Measures the start of a pod's program by the TPU compiler, on a machine without a TPU, in CPU
    seconds: cold, then from the compiled step that the cold start left in JAX's cache."""
    parts: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for temperature in ("cold", "warm"):
                said = subprocess.run(
                    [sys.executable, "-m", "benchmarks.start", "--pod"],
                    cwd=ROOT,
                    env=environment(**ENVIRONMENT, JAX_COMPILATION_CACHE_DIR=cache),
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                for name, seconds in json.loads(said).items():
                    parts.setdefault(f"{POD} {temperature}: {name}", []).append(seconds)
    return [row(name, values, " CPU s") for name, values in parts.items()]


def start_pod() -> dict[str, float]:
    """Returns the CPU seconds of each part of a pod's start.

    The cache is read through the compiler, which then cannot load the step, as that takes a TPU:
    the error shows that JAX found the entry under the same key.
    """
    import jax

    from flaxformer_lite.cli import command_line
    from flaxformer_lite.contrib.plan import aot, planner, topology
    from flaxformer_lite.runs.start.adopt import read_experiment

    jax.config.update("jax_raise_persistent_cache_errors", True)
    name, machine = POD.split(" on ")
    clock = [time.process_time()]
    cfg = read_experiment(command_line.config([f"--config={name}"]))
    ready = planner.build(cfg, topology.parse(machine), described=False)
    clock.append(time.process_time())
    traced = ready.train_step.trace(ready.target, ready.batch)
    clock.append(time.process_time())
    lowered = traced.lower(lowering_platforms=("tpu",))
    clock.append(time.process_time())
    with aot.quiet():
        try:
            lowered.compile()
            last = "compile"
        except jax.errors.JaxRuntimeError as error:
            if "DeserializeLoadedExecutable" not in str(error):
                raise
            last = "read the compiled step"
    clock.append(time.process_time())
    names = ("imports", "model and shardings", "trace", "lower", last)
    return dict(zip(names, [clock[0], *np.diff(clock)], strict=True))


def timed(arguments: list[str], code: int = 0) -> tuple[float, float]:
    """Returns wall and CPU seconds of a Python process that exits with `code`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {process.returncode}.")
    return seconds, used.ru_utime + used.ru_stime


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"JAX_PLATFORMS": "cpu"} | variables


def row(what: str, values: list[float], unit: str = " s", most: float | None = None) -> dict:
    return {"what": what, "values": values, "unit": unit, "most": most}


QUESTIONS = {
    "imports": (imports, 3),
    "help": (help_text, 3),
    "first_step": (first_step, 1),
    "depths": (depths, 2),
    "pod": (pod, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--question", action="append", choices=QUESTIONS, help="may be given again; all by default"
    )
    parser.add_argument(
        "--rounds", type=int, default=99, help="at most; each question has its own number"
    )
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="a folder")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pod", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pod:
        print(json.dumps(start_pod()))
        return
    if args.compile:
        print(json.dumps(compile_scanned(args.compile)))
        return
    command = " ".join(
        ["python -m benchmarks.start", *(a for a in sys.argv[1:] if not a.startswith("--out"))]
    )
    for name in args.question or QUESTIONS:
        ask, rounds = QUESTIONS[name]
        with results.stamped(command) as result:
            result["rows"] = ask(min(rounds, args.rounds))
        results.keep(args.out, "start", name, result)
        print(
            name, *(f"{r['what']}: {r['values']}" for r in result["rows"]), sep="\n  ", flush=True
        )


if __name__ == "__main__":
    main()
