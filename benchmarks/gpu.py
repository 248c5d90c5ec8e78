"""Proves attention's kernels on one GPU, and measures train steps, decoding and embedding there.

    make gpu EMBEDDER=path/to/minilm      # environments, all cases, and docs/benchmarks/gpu.md
    python -m benchmarks.gpu --environments=.venv-gpu
    # only shows that it runs
    JAX_PLATFORMS=cpu python -m benchmarks.gpu --tiny --rounds=1 --out=/tmp/gpu

It has not run on a GPU yet; only --tiny has, on a CPU. Each turn is a process that has the GPU to
itself, and peers take turns. The first turn looks for the largest batch that fits, later ones keep
it. Timed is the whole train step that training/program.py builds, in bfloat16, on a batch that lies
on the device; a figure is the median of a turn's steps. Rows hold one text: GPT-2's documents are
joined, T5's and BERT's stand alone, BERT's padded. FLOPs are the model's, all pairs counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_turn import ATTENTIONS, BATCHES, DECODE, EMBED, GPTS, NEW, PROVEN, TRAIN
from flaxformer_lite.contrib.plan.topology import CHIPS

ROOT = Path(__file__).parents[1]
CASES = (*PROVEN, *TRAIN, *DECODE, *EMBED)
KERNELS = ("cudnn", "blockwise")  # what is proved against dense attention
ENVIRONMENTS = ("torch", "vllm")  # folders of `make gpu`, and the peers in them
MEASURED = (
    "| case | peer | batch | tokens/s | of the peak | first step, s | memory, GB |\n"
    "|---|---|---:|---:|---:|---:|---:|"
)
COMPARED = (
    "| case | kernel | B, T, heads, of keys, width, mask | forward | backward | dense, forward |"
    " backward | agrees |\n|---|---|---|---:|---:|---:|---:|---|"
)


def peers(name: str) -> list[str]:
    """Lists the peers of a case; decoding computes one row at a time, for which there is no
    kernel."""
    if name in PROVEN:
        return list(KERNELS)
    if name in TRAIN:
        others = ["torch"] if name in GPTS else []
        return [*ATTENTIONS, *others]
    if name in DECODE:
        return ["auto", *ENVIRONMENTS]
    return ["auto", "torch"]


def ask(python: str, name: str, peer: str, batch: int, tiny: bool, embedder: str = "") -> dict:
    """Runs one turn and returns its answer; what went wrong is `missing`, as others can go on."""
    if "/" in python and not Path(python).exists():
        return {"missing": f"no {python}; make gpu makes it"}
    words = [python, "-m", "benchmarks.gpu_turn", name, peer, str(batch)]
    if tiny:
        words.append("--tiny")
    if embedder:
        words.append(f"--embedder={embedder}")
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        return {"missing": (ran.stderr.strip() or f"ended with {ran.returncode}").splitlines()[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def summary(name: str, peer: str, turns: list[dict], flops_a_token: float) -> dict:
    """Computes medians over turns, and the utilisation if the device's peak is known."""
    last = turns[-1]
    if name in PROVEN or "missing" in last or not last["batch"]:
        return {"case": name, "peer": peer, **last}
    seconds = statistics.median(one["seconds"] for one in turns)
    peak = next((chip.peak for key, chip in CHIPS.items() if key in last["device"].lower()), None)
    rate = last["tokens"] / seconds
    return {
        "case": name,
        "peer": peer,
        **last,
        "seconds": seconds,
        "turns": [one["seconds"] for one in turns],
        "tokens_per_second": rate,
        "utilisation": peak and rate * flops_a_token / peak,
    }


def measure(name: str, args: argparse.Namespace) -> list[dict]:
    """Lets the peers of a case take turns."""
    turns: dict[str, list[dict]] = {peer: [] for peer in peers(name)}
    for _ in range(1 if name in PROVEN else args.rounds):
        for peer, done in turns.items():
            batch = DECODE.get(name, 2 if args.tiny else BATCHES[0])
            if done:
                batch = done[-1].get("batch", batch)
            python = sys.executable
            if peer in ENVIRONMENTS:
                python = str(args.environments.absolute() / peer / "bin/python")
            done.append(ask(python, name, peer, batch, args.tiny, args.embedder))
    ours = turns.get("auto", [{}])[-1]
    flops = ours["flops"] / ours["tokens"] if ours.get("batch") else 0
    return [summary(name, peer, done, flops) for peer, done in turns.items()]


def row(found: dict) -> str:
    """Formats a row of the page."""
    begin = f"| {found['case']} | {found['peer']} |"
    columns = 6 if found["case"] in PROVEN else 5
    if "missing" in found:
        return f"{begin} {found['missing']}{' |' * columns}"
    if found["case"] in PROVEN:
        errors = [f"{share:.1e}" for share in (*found["errors"], *found["dense"])]
        shape = ", ".join(map(str, found["shape"]))
        agrees = "**no**"
        if found["agrees"]:
            agrees = "yes"
        return f"{begin} {shape} | {' | '.join(errors)} | {agrees} |"
    if not found["batch"]:
        return f"{begin} fits at no batch{' |' * columns}"
    share = ""
    if found["utilisation"]:
        share = f"{found['utilisation']:.0%}"
    figures = (
        f"{found['batch']} | {found['tokens_per_second']:,.0f} | {share} | {found['first']:.1f}"
    )
    return f"{begin} {figures} | {found['memory'] / 1e9:.1f} |"


def page(about: dict, results: list[dict]) -> str:
    """Writes the page of all results."""
    known = [found for found in results if "device" in found]
    devices = dict.fromkeys(found["device"] for found in known)
    versions = dict.fromkeys(found["version"] for found in known)
    lines = [
        "# One GPU",
        "",
        f"    {about['command']}",
        "",
        f"{about['date']}, {', '.join(devices)}; {', '.join(versions)}. Each figure is the median"
        f" of {about['rounds']} turns ([`gpu.py`](../../benchmarks/gpu.py)), in bfloat16.",
    ]
    if about["tiny"]:
        lines.append("**The models are tiny: this only shows that it runs.**")
    for title, text, names, header in (
        (
            "Attention",
            "The largest difference from dense attention in float32, as a share of the largest"
            " number: of a kernel in bfloat16, and of dense attention in bfloat16. A kernel agrees"
            " that is at most twice as far away. What does not agree is no choice of `auto`.",
            PROVEN,
            COMPARED,
        ),
        ("Train steps", "The largest batch that fits, without dropout.", TRAIN, MEASURED),
        ("Generation", f"{NEW} tokens after 16, by GPT-2 124M.", DECODE, MEASURED),
        ("Embedding", "400 texts by all-MiniLM-L6-v2; a token is a word here.", EMBED, MEASURED),
    ):
        rows = [row(found) for found in results if found["case"] in names]
        if rows:
            lines += ["", f"## {title}", "", text, "", header, *rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-gpu")
    parser.add_argument("--embedder", default="", help="published weights of all-MiniLM-L6-v2")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks/gpu", help="less .md")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    about = {"command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]])}
    about |= {"date": time.strftime("%Y-%m-%d"), "tiny": args.tiny, "rounds": args.rounds}
    results: list[dict] = []
    for name in args.case or CASES:
        for found in measure(name, args):
            results.append(found)
            print(row(found), flush=True)
        # After each case, so that a machine that is taken away leaves what it proved.
        args.out.with_suffix(".json").write_text(json.dumps(about | {"results": results}, indent=1))
        args.out.with_suffix(".md").write_text(page(about, results))


if __name__ == "__main__":
    main()
