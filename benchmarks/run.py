"""Measures this package and its peers on the same work, at the same time.

    python -m benchmarks.run --torch=/path/to/python --flax=/path/to/python
    python -m benchmarks.run --torch=/path/to/python --case=gpt_small --rounds=1 --out=/tmp/bench
    python -m benchmarks.run --before=/path/to/checkout --case=gpt_small --out=/tmp/bench

Each peer runs in an interpreter that has it, with one process per case; they all live at once and
take turns, one round each, so that a disturbance of the machine affects all of them. Medians over
rounds are reported, and medians of the ratios of paired rounds. The page is updated after every
case, and keeps earlier cases.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import memory, results, table
from benchmarks.cases import CASES, Case

ROOT = Path(__file__).parents[1]
REST = 0.3  # seconds between turns: threads of the last one stop spinning
STEPS_PER_TURN = 3  # consecutive training steps of one process that are measured


@dataclass(frozen=True)
class Kind:
    """A peer that can be chosen.

    Attributes:
      python: its interpreter: "", "torch" or "flax".
      module: its file in this folder.
      rounds: case -> most rounds to run by default, or None. Everything together should take a
        quarter of an hour, so the least informative cases have 0, and run only if --peer names the
        peer.
      environment: environment variables of its process.
      root: the checkout that it runs in.
    """

    python: str
    module: str
    rounds: dict[str, int | None]
    environment: dict[str, str] = field(default_factory=dict)
    root: Path = ROOT


TRAIN, GENERATE = (
    dict.fromkeys(n for n, c in CASES.items() if c.kind == kind) for kind in ("train", "generate")
)
ON_REQUEST = dict.fromkeys(CASES, 0)
PEERS = {
    table.OURS: Kind("", "ours", TRAIN | GENERATE),
    "HF torch.compile": Kind(
        "torch",
        "hf_torch",
        ON_REQUEST | TRAIN | {"generate_gpt2_b1": 2},
        {"BENCHMARK_COMPILE": "1"},
    ),
    "HF torch eager": Kind(
        "torch", "hf_torch", ON_REQUEST | GENERATE | {"gpt_small": 1, "t5_small": 2}
    ),
    "plain torch.compile": Kind("torch", "nano_torch", {"gpt_small": 2, "gpt2_124m": 0}),
    "HF Flax": Kind("flax", "hf_flax", ON_REQUEST | {"gpt_small": 2}),
}


@dataclass
class Peer:
    """A running peer and its answers."""

    name: str
    rounds: int
    process: subprocess.Popen | None = None
    log: Path | None = None
    first: dict = field(default_factory=dict)
    answers: list[dict] = field(default_factory=list)
    matmuls: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    start_bytes: int = 0
    worker_bytes: int = 0

    def ask(self, request: str) -> dict:
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            words = self.log.read_text()[-2000:]
            raise RuntimeError(
                f"{self.name} ended with {self.process.wait()}; its last words:\n{words}"
            ) from None

    def start(self, began: float, again: bool) -> None:
        """Runs the first piece of work, and a second one if `again`, so that late compilation does
        not count as a step."""
        with memory.workers(self.process.pid) as looks:
            self.first = self.ask("work")
            self.first_seconds = time.perf_counter() - began
        if again:
            self.ask("work")
        self.start_bytes = self.ask("matmul")["peak_bytes"]
        self.worker_bytes = max(looks)
        self.ask("forget")

    def turn(self, trains: bool) -> None:
        """Runs one round.

        A round of training is a block of consecutive steps. The step before them does not count:
        a process that has waited takes up to a fifth longer for it, as a virtual machine that
        returned idle memory to its host gets it back page by page.
        """
        time.sleep(REST)
        steps = 1
        if trains:
            self.ask("work")
            steps = STEPS_PER_TURN
        answers = [self.ask("work") for _ in range(steps)]
        for name in ("seconds", "cpu_seconds"):
            answers[-1][name] = statistics.fmean(answer[name] for answer in answers)
        self.answers.append(answers[-1])
        self.matmuls.append(self.ask("matmul")["value"]["seconds"])


def measure(case: Case, rounds: dict[str, int], pythons: dict[str, str], folder: Path) -> dict:
    """Measures one case.

    Args:
      case: any case, not only one of CASES.
      rounds: rounds of each peer, ours first.
      pythons: interpreters, by their names in `Kind`.
      folder: folder for weights.

    Raises:
      RuntimeError: a peer has ended; the message has its last output.
    """
    weights = folder / f"{case.family}_{case.layers}x{case.d_model}"
    if case.kind == "generate" and not weights.exists():
        draw = [
            sys.executable,
            "-m",
            "benchmarks.draw",
            json.dumps(dataclasses.asdict(case)),
            str(weights),
        ]
        subprocess.run(draw, check=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(running(name, n, case, pythons, weights))
            for name, n in rounds.items()
        ]
        for number in range(max(rounds.values())):
            for peer in peers:
                if number < peer.rounds:
                    peer.turn(trains=case.kind == "train")
    return summary(peers)


@contextlib.contextmanager
def running(
    name: str, rounds: int, case: Case, pythons: dict[str, str], weights: Path
) -> Iterator[Peer]:
    """Starts a peer with empty caches, so that it compiles everything."""
    kind = PEERS[name]
    command = [
        pythons[kind.python],
        "-m",
        f"benchmarks.{kind.module}",
        json.dumps(dataclasses.asdict(case)),
    ]
    with tempfile.TemporaryDirectory() as cache, tempfile.NamedTemporaryFile() as log:
        environment = (
            os.environ
            | kind.environment
            | {
                "BENCHMARK_CACHE": cache,
                "BENCHMARK_WEIGHTS": str(weights),
                "HF_HUB_OFFLINE": "1",
                "JAX_COMPILATION_CACHE_DIR": cache,
                "JAX_PLATFORMS": "cpu",
                "OMP_NUM_THREADS": str(os.cpu_count()),
                "TORCHINDUCTOR_CACHE_DIR": cache,
            }
        )
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=kind.root, env=environment, **pipes) as process:
            try:
                peer = Peer(name, rounds, process, Path(log.name))
                peer.start(began, again=case.kind == "train" and rounds > 2)
                yield peer
            finally:
                with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                    process.stdin.close()  # no more requests: it exits by itself, with its workers
                    process.wait(10)
                process.kill()


def summary(peers: list[Peer]) -> dict:
    """Computes the numbers of a case; ours is the first peer, and fewer rounds are paired with its
    first ones."""
    ours = peers[0]
    out = {}
    for peer in peers:
        pairs = zip(peer.answers, ours.answers, strict=False)
        seconds = [answer["seconds"] for answer in peer.answers]
        out[peer.name] = {
            "seconds": statistics.median(seconds),
            "cpu_seconds": statistics.median(answer["cpu_seconds"] for answer in peer.answers),
            "times_ours": spread([theirs["seconds"] / mine["seconds"] for theirs, mine in pairs]),
            "first_seconds": peer.first_seconds,
            "start_bytes": peer.start_bytes,
            "worker_bytes": peer.worker_bytes,
            "step_bytes": max(answer["peak_bytes"] for answer in peer.answers),
            "matmul_seconds": min(peer.matmuls),
            "rounds": seconds,
        }
        if "ids" in peer.first["value"]:
            out[peer.name]["same_ids"] = alike(
                peer.first["value"]["ids"], ours.first["value"]["ids"]
            )
        else:
            out[peer.name]["losses"] = [
                answer["value"]["loss"] for answer in (peer.first, peer.answers[-1])
            ]
    return {"flops": ours.first["value"].get("flops"), "peers": out}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def alike(theirs: list[list[int]], ours: list[list[int]]) -> float:
    """Returns the share of equal tokens; rows must have the same length."""
    pairs = [pair for rows in zip(theirs, ours, strict=True) for pair in zip(*rows, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def plan(name: str, installed: Iterable[str], asked: list[str] | None, most: int) -> dict[str, int]:
    """Returns the rounds of each peer in a case, ours first: all for requested peers, else the
    defaults."""
    most = min(most, CASES[name].rounds)
    rounds = {}
    for peer in installed:
        limit = PEERS[peer].rounds.get(name, 0)
        if peer == table.OURS or (asked and peer in asked and name in PEERS[peer].rounds):
            rounds[peer] = most
        elif not asked and limit != 0:
            rounds[peer] = min(most, limit or most)
    return rounds


def versions(pythons: dict[str, str]) -> dict[str, dict[str, str]]:
    """Returns versions of the installed peers; this also reads their imports from disk once."""
    found = {}
    for name, kind in PEERS.items():
        if kind.python in pythons:
            try:
                found[name] = _said(pythons[kind.python], f"benchmarks.{kind.module}")
            except subprocess.CalledProcessError as error:
                words = error.stderr.strip() or str(error)
                print(f"left out: {name}: {words.splitlines()[-1]}", file=sys.stderr)
    return found


@functools.cache
def _said(python: str, module: str) -> dict[str, str]:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python, "-m", module],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", help="a python that has torch and transformers")
    parser.add_argument("--flax", help="a python that has transformers 4 and its Flax models")
    parser.add_argument(
        "--before", type=Path, help="a checkout of an earlier commit, to measure beside this one"
    )
    parser.add_argument(
        "--case", action="append", choices=CASES, help="may be given again; all by default"
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS)[1:],
        help="may be given again; where it can, in full",
    )
    parser.add_argument(
        "--rounds", type=int, default=99, help="at most; each case has its own number"
    )
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="a folder")
    args = parser.parse_args()
    for flag in ("torch", "flax"):
        if (path := getattr(args, flag)) and not shutil.which(path):
            parser.error(f"--{flag}={path}: no such interpreter.")
    if args.before:
        if not (args.before / "benchmarks" / "ours.py").exists():
            parser.error(
                f"--before={args.before}: no checkout of this project, which has"
                " benchmarks/ours.py."
            )
        PEERS["before"] = dataclasses.replace(PEERS[table.OURS], root=args.before.resolve())
    pythons = {"": sys.executable} | {
        flag: path for flag in ("torch", "flax") if (path := getattr(args, flag))
    }
    given = shlex.join(a for a in sys.argv[1:] if not a.startswith("--out"))
    command = f"python -m benchmarks.run {given}".replace(str(args.torch), "PYTHON").replace(
        str(args.flax), "PYTHON"
    )
    command = command.replace(str(args.before), "CHECKOUT")
    known = versions(pythons)
    if table.OURS not in known:
        sys.exit(1)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.case or CASES:
            rounds = plan(name, known, args.peer, args.rounds)
            with results.stamped(command) as result:
                try:
                    result |= measure(CASES[name], rounds, pythons, Path(folder))
                except RuntimeError as error:
                    failed.append(name)
                    print(f"{name}: {error}", file=sys.stderr)
                    continue
                for peer, numbers in result["peers"].items():
                    numbers["versions"] = known[peer]
            results.keep(args.out, "cases", name, result)
            print(table.of_case(name, result), flush=True)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}.")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        # so that the peers end as well
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    main()
