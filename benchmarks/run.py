"""Measures this package beside what else is installed, on the same work in the same minutes.

    python benchmarks/run.py --torch=/path/to/python --flax=/path/to/python
    python benchmarks/run.py --torch=/path/to/python --case=gpt_small --rounds=3 --out=/tmp/bench

A peer is an interpreter that has it. Each peer's case is a process of its own; they all live at once and take turns, one
round each, so that a disturbance of the machine falls on all of them. Reported are medians over rounds, and medians of the
ratios of paired rounds.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import table
from cases import CASES

HERE = Path(__file__).parent
REST = 0.3  # seconds between turns: threads of the last one stop spinning
PEERS = {  # name -> (interpreter's flag, file, environment)
    "flaxformer_lite": ("", "ours.py", {}),
    "HF torch.compile": ("torch", "hf_torch.py", {"BENCHMARK_COMPILE": "1"}),
    "HF torch eager": ("torch", "hf_torch.py", {}),
    "plain torch.compile": ("torch", "nano_torch.py", {}),
    "HF Flax": ("flax", "hf_flax.py", {}),
}


@dataclass
class Peer:
    """A running peer and what it has answered."""

    name: str
    process: subprocess.Popen
    began: float
    answers: list[dict] = field(default_factory=list)
    matmuls: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    peak_bytes: int = 0

    def ask(self, request: str) -> dict:
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}; its last words are in its log.")
        answer = json.loads(line)
        self.peak_bytes = answer["peak_bytes"]
        return answer

    def start(self) -> dict:
        first = self.ask("work")
        self.first_seconds = time.perf_counter() - self.began
        self.answers.append(first)
        return first


def measure(name: str, peers: list[str], pythons: dict[str, str], rounds: int, logs: Path) -> dict:
    """All numbers of one case."""
    with contextlib.ExitStack() as stack:
        running = []
        for peer in peers:
            peer = stack.enter_context(open_peer(peer, name, pythons, logs))
            peer.start()
            running.append(peer)
        for peer in running:  # a second one: what is compiled late, or only then loaded, is not what a step costs
            peer.ask("work"), peer.ask("matmul")
        for _ in range(rounds):
            for peer in running:
                time.sleep(REST)
                peer.answers.append(peer.ask("work"))
                peer.matmuls.append(peer.ask("matmul")["value"])
        return summary(name, running)


@contextlib.contextmanager
def open_peer(peer: str, case: str, pythons: dict[str, str], logs: Path):
    """A peer with empty caches: what it compiles, it compiles now."""
    flag, file, environment = PEERS[peer]
    with tempfile.TemporaryDirectory() as cache, open(logs / f"{case}.{peer.replace(' ', '_')}.log", "w") as log:
        environment = os.environ | environment | {
            "BENCHMARK_CACHE": cache,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "PYTHONPATH": str(HERE.parent) if not flag else "",
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        command = [pythons[flag], str(HERE / file), case]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        began = time.perf_counter()
        with subprocess.Popen(command, env=environment, **pipes) as process:
            try:
                yield Peer(peer, process, began)
            finally:
                process.kill()


def summary(name: str, running: list[Peer]) -> dict:
    ours = running[0]
    peers = {}
    for peer in running:
        rounds = peer.answers[1:]
        pairs = zip(rounds, ours.answers[1:], strict=True)
        peers[peer.name] = {
            "seconds": statistics.median(a["seconds"] for a in rounds),
            "cpu_seconds": statistics.median(a["cpu_seconds"] for a in rounds),
            "fastest_seconds": min(a["seconds"] for a in rounds),
            "times_ours": statistics.median(theirs["seconds"] / mine["seconds"] for theirs, mine in pairs),
            "first_seconds": peer.first_seconds,
            "peak_bytes": peer.peak_bytes,
            "matmul_seconds": min(peer.matmuls),
            "first": peer.answers[0]["value"],
            "last": peer.answers[-1]["value"],
            "versions": peer.answers[0]["versions"],
            "rounds": [a["seconds"] for a in rounds],
        }
    return {"case": name, "flops": ours.answers[0]["value"].get("flops"), "peers": peers}


def machine() -> dict[str, str]:
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.split(":")[1].strip() for line in known.splitlines() if line.startswith("model name")), "")
    return {"processor": model or platform.processor(), "cores": str(os.cpu_count()), "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="a python that has torch and transformers")
    parser.add_argument("--flax", help="a python that has transformers 4 and its Flax models")
    parser.add_argument("--case", action="append", choices=CASES, help="may be given again; all by default")
    parser.add_argument("--peer", action="append", choices=list(PEERS)[1:], help="may be given again; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "benchmarks", help="a folder")
    args = parser.parse_args()
    pythons = {"": sys.executable, "torch": args.torch, "flax": args.flax}
    args.out.mkdir(parents=True, exist_ok=True)
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "command": " ".join(["python", "benchmarks/run.py", *(a for a in sys.argv[1:] if not a.startswith("--out"))]),
        "rounds": args.rounds,
        "load": [os.getloadavg()[0]],
        "cases": [],
    }
    with tempfile.TemporaryDirectory() as logs:
        for name in args.case or CASES:
            peers = [p for p in PEERS if pythons[PEERS[p][0]] and p in ["flaxformer_lite", *(args.peer or PEERS)]]
            peers = [p for p in peers if fits(p, name)]
            try:
                results["cases"].append(measure(name, peers, pythons, args.rounds, Path(logs)))
            except RuntimeError as error:
                sys.exit(f"{name}: {error}\n" + "\n".join(log.read_text()[-2000:] for log in Path(logs).glob(f"{name}.*")))
            print(table.of_case(results["cases"][-1]), flush=True)
    results["load"].append(os.getloadavg()[0])
    results["command"] = results["command"].replace(str(args.torch), "PYTHON").replace(str(args.flax), "PYTHON")
    (args.out / "cpu.json").write_text(json.dumps(results, indent=1) + "\n")
    (args.out / "cpu.md").write_text(table.page(results))
    table.plot(results, args.out / "cpu.png")


def fits(peer: str, case: str) -> bool:
    """Whether the peer has such a model, and does it differently from another one."""
    if CASES[case].kind == "generate":
        return peer in ("flaxformer_lite", "HF torch eager", "HF Flax")
    return peer != "plain torch.compile" or CASES[case].family == "gpt2"


if __name__ == "__main__":
    main()
