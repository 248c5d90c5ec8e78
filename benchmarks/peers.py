"""Does the jobs of users with this package and its peers, and writes docs/benchmarks/peers.txt.

    make peers WRITER=path/to/smollm2 EMBEDDER=path/to/minilm
    python -m benchmarks.peers --writer=DIR --embedder=DIR --environments=.venv-peers

Each turn is a process of its own, which does its job once and then twice. Peers take turns,
so that a disturbance of the machine affects them all. The page has the least of the turns, and
says what is missing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.peer_jobs import (
    BATCH,
    BEAMS,
    LENGTH,
    LORA_BATCH,
    LORA_HELD_OUT,
    LORA_RANK,
    LORA_STEPS,
    NEW,
    PROMPT,
    ROWS,
    STEPS,
    TEXTS,
    TOKENIZED,
)
from benchmarks.peers_turn import PEERS, jobs_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks/peers.txt"
MOST_SECONDS = 600  # of a turn
# folders of `make peers`; the rest run where this module does
ENVIRONMENT_OF = {
    "transformers": "torch",
    "transformers static": "torch",
    "sentence-transformers": "torch",
    "sentence-transformers onnx": "onnx",
    "peft": "torch",
    "CTranslate2": "ctranslate2",
    "llama.cpp": "llama",
}
CONVERTED = (
    "ours",
    "sentence-transformers onnx",
    "CTranslate2",
    "llama.cpp",
)  # peers that have something to prepare
PACKAGES = (
    "jax",
    "torch",
    "transformers",
    "sentence-transformers",
    "peft",
    "onnxruntime",
    "ctranslate2",
    "xllamacpp",
)
VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""
HEADER = (
    "| job | peer | whole process, CPU s | wall s | again, CPU s | wall s | a second |"
    " of the limit | memory, MB |\n|---|---|---:|---:|---:|---:|---:|---:|---:|"
)


class Job(NamedTuple):
    """A job, named `KIND ROWS FORM`.

    Attributes:
      what: it does.
      unit: of what the page counts by the second.
      count: how many of them a job does.
    """

    what: str
    unit: str
    count: int


WRITES = f"writes {NEW} tokens after each of as many prompts of {PROMPT}, greedily"
JOBS = {
    "load 1 float32": Job("loads the writer's weights", "", 0),
    "tokenize 1 text": Job(f"tokenizes {TOKENIZED:,} texts, one at a time", "texts", TOKENIZED),
    "embed 32 float32": Job(f"embeds {TEXTS} texts", "texts", TEXTS),
    "predict 32 float32": Job(
        f"classifies {TEXTS} texts, 32 at a time, padded to the longest of these; ours by length",
        "texts",
        TEXTS,
    ),
    "generate 1 float32": Job(WRITES, "tokens", NEW),
    "generate 8 float32": Job(WRITES, "tokens", 8 * NEW),
    "generate 1 int8": Job(WRITES, "tokens", NEW),
    "generate 8 int8": Job(WRITES, "tokens", 8 * NEW),
    "beams 1 float32": Job(f"writes {NEW} tokens by {BEAMS} beams", "tokens", NEW),
    f"classify {BATCH} float32": Job(
        f"fine-tunes the embedder on a csv of {ROWS:,} rows in {STEPS} steps of {BATCH}, evaluates"
        " on a tenth before and after, and saves; ours also reports",
        "steps",
        STEPS,
    ),
    f"lora {LORA_BATCH} float32": Job(
        f"trains LoRA of rank {LORA_RANK} on the queries and values of the writer, in {LORA_STEPS}"
        f" steps of {LORA_BATCH} rows of {LENGTH} tokens, evaluates on a seventh before and after,"
        " answers two prompts, and saves; ours also reports",
        "steps",
        LORA_STEPS,
    ),
}


def ask(python: str, *words: str) -> dict:
    """Runs a process and returns the JSON of its last line, or its last words as `missing`."""
    if "/" in python and not Path(python).exists():
        return {"missing": f"no {python}; make peers makes it"}
    try:
        ran = subprocess.run(
            [python, *words], cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"took more than {MOST_SECONDS} s"}
    if ran.returncode:
        return {"missing": (ran.stderr.strip() or f"ended with {ran.returncode}").splitlines()[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def least(turns: list[dict]) -> dict:
    """Returns the least of each figure."""
    for turn in turns:
        if "missing" in turn:
            return turn
    return {name: min(turn[name] for turn in turns) for name in turns[0]}


def count_weights(folder: str) -> tuple[int, int]:
    """Returns the number of a model's weights, and that of those outside of its tables."""
    size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors")) // 4
    config = json.loads((Path(folder) / "config.json").read_text())
    return size, size - config["vocab_size"] * config["hidden_size"]


def limit(job: str, writer: str, embedder: str, machine: dict) -> float:
    """Returns the seconds that a job takes at least: to multiply, or to read the weights.

    Of products with weights alone, without attention's.
    """
    kind, count, form = job.split()
    rows = int(count)
    flops = 0.0
    size = 0.0
    if kind in ("load", "generate", "beams", "lora"):
        whole, _ = count_weights(writer)
        passes = {"load": 1, "generate": NEW, "beams": NEW, "lora": 0}[kind]
        size = passes * whole * (1 if form == "int8" else 4)
        tokens = {
            "load": 0,
            "generate": rows * (PROMPT + NEW),
            "beams": PROMPT + BEAMS * NEW,
            # steps there and back, without gradients of weights, and two evaluations
            "lora": 2 * (LORA_STEPS * rows + LORA_HELD_OUT) * LENGTH,
        }[kind]
        flops = 2.0 * whole * tokens
    if kind in ("embed", "predict", "classify"):
        _, within = count_weights(embedder)
        texts = {"embed": TEXTS, "predict": TEXTS, "classify": 3 * STEPS * rows}[kind]
        flops = 2.0 * within * texts * machine["tokens_a_text"]
    return max(flops / machine["flops"], size / machine["bytes"])


def row(job: str, peer: str, found: dict, seconds: float) -> str:
    """Formats a row; `seconds` is the limit of the job."""
    if "missing" in found:
        return f"| {job} | {peer} | {found['missing']} | | | | | | |"
    again = " | "
    wall = found["whole_wall"]
    if "wall" in found:
        wall = found["wall"]
        again = f"{found['cpu']:.2f} | {wall:.2f}"
    rate = ""
    if JOBS[job].unit:
        rate = f"{JOBS[job].count / wall:,.1f} {JOBS[job].unit}"
    share = ""
    if seconds:
        share = f"{seconds / wall:.0%}"
    whole = f"{found['whole']:.1f} | {found['whole_wall']:.1f}"
    return f"| {job} | {peer} | {whole} | {again} | {rate} | {share} | {found['peak'] / 1e6:,.0f} |"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def prepare(pythons: dict[str, str], *folders: str) -> None:
    """Converts the writer for the peers that need it, and fine-tunes a classifier."""
    for peer in CONVERTED:
        for form in ("float32", "int8"):
            words = (f"prepare 1 {form}", peer, str(os.cpu_count()), *folders)
            found = ask(pythons[peer], "-m", "benchmarks.peers_turn", *words)
            if "missing" in found:
                print(f"{peer} {form}: {found['missing']}", flush=True)


def head(args: argparse.Namespace, pythons: dict[str, str]) -> list[str]:
    """Returns the lines above the tables."""
    named = []
    for python in dict.fromkeys(pythons.values()):
        found = ask(python, "-c", VERSIONS, *PACKAGES)
        named.append(" ".join(f"{name} {version}" for name, version in found.items()))
    lines = [
        "# Peers",
        "",
        f"    make peers WRITER={Path(args.writer).name} EMBEDDER={Path(args.embedder).name}",
        "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} cores. Environments:"
        f" {'; '.join(named)}. Each figure is the least of {args.rounds} turns"
        " ([`peers.py`](../../benchmarks/peers.py)). *Whole process* has imports, loading and"
        " compiling, with nothing kept from an earlier one. *Of the limit* is the time in which the"
        " machine could multiply with the weights, or read them as fast as it copies memory (which"
        " writes as much), over the time taken. CTranslate2's int8 multiplies by int8; llama.cpp is"
        " xllamacpp's wheel for AVX2, and its int8 Q8_0; both keep a core busy while they wait for"
        " the other, so that their best may be with one thread.",
        "",
        "| job | what it does |",
        "|---|---|",
    ]
    for name in args.job or JOBS:
        lines.append(f"| {name} | {JOBS[name].what} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writer", required=True, help="published weights of SmolLM2")
    parser.add_argument("--embedder", required=True, help="those of all-MiniLM-L6-v2")
    parser.add_argument("--environments", type=Path, help="the folder that make peers makes")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    pythons = dict.fromkeys(PEERS, sys.executable)
    if args.environments:
        for peer, name in ENVIRONMENT_OF.items():
            pythons[peer] = str(args.environments.absolute() / name / "bin/python")
    classifier = f"{args.embedder.rstrip('/')}.classifier"
    prepare(pythons, args.writer, args.embedder, classifier)
    lines = head(args, pythons)
    for threads in args.threads.split(","):
        words = (threads, args.writer, args.embedder, classifier)
        machine = ask(sys.executable, "-m", "benchmarks.peers_turn", "limits", "ours", *words)
        product = f"{machine['flops'] / 1e9:.0f} GFLOP/s"
        copy = f"{machine['bytes'] / 1e9:.1f} GB/s"
        lines += ["", f"## Threads: {threads}", ""]
        lines += [f"A product of matrices: {product}; a copy: {copy}.", "", HEADER]
        for job in args.job or JOBS:
            able = [peer for peer in args.peer or PEERS if job.split()[0] in jobs_of(peer)]
            turns: dict[str, list[dict]] = {peer: [] for peer in able}
            for _ in range(args.rounds):
                for peer in able:
                    turn = ask(pythons[peer], "-m", "benchmarks.peers_turn", job, peer, *words)
                    turns[peer].append(turn)
            seconds = limit(job, args.writer, args.embedder, machine)
            for peer, found in turns.items():
                lines.append(row(job, peer, least(found), seconds))
                print(lines[-1], flush=True)
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
