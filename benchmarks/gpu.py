"""Train steps and decoding in bfloat16 on one GPU: attention by cuDNN and by XLA, beside torch
where it is installed.

    # all cases, into docs/benchmarks/gpu.json
    python -m benchmarks.gpu --torch=/path/to/python
    # only shows that it runs
    JAX_PLATFORMS=cpu python -m benchmarks.gpu --tiny --rounds=1 --out=/tmp/gpu.json

It has not run on a GPU yet; only --tiny has, on a CPU. Each turn is a process that has the GPU to
itself, and peers take turns. The first turn looks for the largest batch that fits, later ones keep
it. Timed is the whole train step that training/program.py builds, on a batch that lies on the
device; a figure is the median of a turn's steps. Rows hold one
text: GPT-2's documents are joined, T5's and BERT's stand alone, BERT's padded. FLOPs are the
  model's, all pairs
counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_turn import BATCHES, DECODE, GPTS, TRAIN
from flaxformer_lite.contrib.plan.topology import CHIPS

ROOT = Path(__file__).parents[1]
ATTENTIONS = ("auto", "blockwise", "dense")
SHOWN = ("case", "peer", "batch", "tokens_per_second", "utilisation")


def peers(name: str, torch: str) -> list[str]:
    """Lists the peers of a case; decoding computes one row at a time, for which there is no
    kernel."""
    ours = list(ATTENTIONS if name in TRAIN else ATTENTIONS[:1])
    return [*ours, "torch"] if torch and (name in GPTS or name in DECODE) else ours


def ask(python: str, name: str, peer: str, batch: int, tiny: bool) -> dict:
    """Runs one turn and returns its answer."""
    words = [
        python,
        "-m",
        "benchmarks.gpu_turn",
        name,
        peer,
        str(batch),
        *(["--tiny"] if tiny else []),
    ]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(words)}:\n{ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def summary(name: str, peer: str, turns: list[dict], flops_a_token: float) -> dict:
    """Computes medians over turns, and the utilisation if the device's peak is known."""
    last = turns[-1]
    if not last["batch"]:
        return {"case": name, "peer": peer, "batch": 0}
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch", default="", help="an interpreter that has torch, and for decoding transformers"
    )
    parser.add_argument("--case", action="append", choices=[*TRAIN, *DECODE])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks/gpu.json")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    results = []
    for name in args.case or [*TRAIN, *DECODE]:
        turns = {peer: [] for peer in peers(name, args.torch)}
        for _ in range(args.rounds):
            for peer, done in turns.items():
                batch = (
                    done[-1]["batch"] if done else DECODE.get(name, 2 if args.tiny else BATCHES[0])
                )
                done.append(
                    ask(
                        args.torch if peer == "torch" else sys.executable,
                        name,
                        peer,
                        batch,
                        args.tiny,
                    )
                )
        ours = turns["auto"][-1]
        flops = ours["flops"] / ours["tokens"] if ours["batch"] else 0
        for peer, done in turns.items():
            results.append(row := summary(name, peer, done, flops))
            print({key: row.get(key) for key in SHOWN}, flush=True)
    about = {"command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "tiny": args.tiny}
    args.out.write_text(json.dumps(about | {"results": results}, indent=1))


if __name__ == "__main__":
    main()
