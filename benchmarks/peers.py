"""Does the jobs of users with this package and its peers, and writes docs/benchmarks/peers.md.

    make peers WRITER=path/to/smollm2 EMBEDDER=path/to/minilm
    python -m benchmarks.peers --writer=DIR --embedder=DIR --python torch=PYTHON

Each turn is a process of its own, which does its job once and then twice. Peers take turns,
so that a disturbance of the machine affects them all. The page has the least of the turns, in CPU
seconds, as these depend less on what else runs, and says what is missing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers_turn import NEW, PEERS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks/peers.md"
JOBS = (
    "load 1 float32",
    "tokenize 1 text",
    "embed 1 float32",
    "generate 1 float32",
    "generate 8 float32",
    "generate 1 int8",
    "generate 8 int8",
)
PACKAGES = ("jax", "torch", "transformers", "sentence-transformers", "ctranslate2")
VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""
HEADER = (
    "| job | peer | whole process, CPU s | again, CPU s | again, wall s | tokens/s | of the copy |"
    " memory, MB |\n|---|---|---:|---:|---:|---:|---:|---:|"
)


def ask(python: str, *words: str) -> dict:
    """Runs a process and returns the JSON of its last line, or its last words as `missing`."""
    ran = subprocess.run([python, *words], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        return {"missing": ran.stderr.strip().splitlines()[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def least(turns: list[dict]) -> dict:
    """Returns the least of each figure."""
    if "missing" in turns[0]:
        return turns[0]
    return {name: min(turn[name] for turn in turns) for name in turns[0]}


def row(job: str, peer: str, found: dict, table_bytes: int, limit: float) -> str:
    """Formats a row; generation's share is of the copy's speed, by the weights that it reads."""
    if "missing" in found:
        return f"| {job} | {peer} | {found['missing']} | | | | | |"
    kind, rows, form = job.split()
    rate = share = ""
    if kind == "generate":
        rate = f"{int(rows) * NEW / found['wall']:.0f}"
        size = table_bytes / (4 if form == "int8" else 1)
        share = f"{size * NEW / found['wall'] / limit:.0%}"
    figures = f"{found['whole']:.1f} | {found['cpu']:.2f} | {found['wall']:.2f} | {rate} | {share}"
    return f"| {job} | {peer} | {figures} | {found['peak'] / 1e6:,.0f} |"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def convert(python: str, writer: str) -> None:
    """Converts the writer for CTranslate2, in float32 and int8, where that is not done."""
    for form in ("float32", "int8"):
        folder = f"{writer}.ctranslate2-{form}"
        if not Path(folder).exists():
            words = ["-m", "ctranslate2.converters.transformers", "--model", writer]
            words += ["--output_dir", folder, "--quantization", form]
            ran = subprocess.run([python, *words], check=False, capture_output=True, text=True)
            if ran.returncode:
                print(f"{folder}: not converted ({ran.stderr.strip().splitlines()[-1]})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writer", required=True, help="published weights of SmolLM2")
    parser.add_argument("--embedder", required=True, help="those of all-MiniLM-L6-v2")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--job", action="append", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    pythons = dict.fromkeys(PEERS, sys.executable)
    pythons |= dict(named.split("=", 1) for named in args.python)
    if "CTranslate2" in dict(named.split("=", 1) for named in args.python):
        convert(pythons["CTranslate2"], args.writer)
    versions = {}
    for python in pythons.values():
        versions |= ask(python, "-c", VERSIONS, *PACKAGES)
    size = sum(path.stat().st_size for path in Path(args.writer).glob("*.safetensors"))
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = f"{processor()}, {os.cpu_count()} cores"
    lines = [
        "# Peers",
        "",
        f"    make peers WRITER={Path(args.writer).name} EMBEDDER={Path(args.embedder).name}",
        "",
        f"{time.strftime('%Y-%m-%d')}, {machine}; {named}. Each figure is the least of"
        f" {args.rounds} turns ([`peers.py`](../../benchmarks/peers.py)). *Whole process* has"
        " imports, loading and compiling, with nothing kept from an earlier one; *of the copy* is"
        " the speed at which weights are read, over that of a copy in memory, which writes as much."
        f" Texts have about 47 tokens, prompts 32; {NEW} new tokens are written.",
    ]
    for threads in args.threads.split(","):
        paths = (threads, args.writer, args.embedder)
        limits = ask(sys.executable, "-m", "benchmarks.peers_turn", "limits", "ours", *paths)
        product = f"{limits['flops'] / 1e9:.0f} GFLOP/s"
        copy = f"{limits['bytes'] / 1e9:.1f} GB/s"
        lines += ["", f"## Threads: {threads}", ""]
        lines += [f"A product of matrices: {product}; a copy: {copy}.", "", HEADER]
        for job in args.job or JOBS:
            turns: dict[str, list[dict]] = {peer: [] for peer in PEERS}
            for _ in range(args.rounds):
                for peer, python in pythons.items():
                    turns[peer].append(
                        ask(python, "-m", "benchmarks.peers_turn", job, peer, *paths)
                    )
            for peer, found in turns.items():
                lines.append(row(job, peer, least(found), size, limits["bytes"]))
                print(lines[-1], flush=True)
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
