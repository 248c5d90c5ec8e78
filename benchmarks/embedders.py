"""Fine-tunes embedders on pairs, and measures how well they search before and after.

    python examples/docstrings.py pairs runs/pairs --rows 3000
    python -m benchmarks.embedders --data runs/pairs --out runs/embedders \
        --model small=path/to/minilm --steps 300 --model large=path/to/smollm2 --steps 30

Each model is trained for its number of steps, which are chosen for equal CPU time, by a command of
its own, and evaluated by `evaluate --retrieval` on the held-out pairs. Prints nDCG@10, MRR@10 and
recall@10 before and after, the CPU minutes (user time) and the memory of the training.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SHOWN = ("ndcg_10", "mrr_10", "recall_10")
LENGTH = 64


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "flaxformer_lite", *args]


def measured(model: str, data: Path) -> dict[str, float]:
    """Returns the metrics of a model on the held-out pairs."""
    args = ["evaluate", "--model", model, "--data", str(data / "dev.jsonl"), "--retrieval"]
    ran = subprocess.run(command(*args, "--json"), check=True, capture_output=True, text=True)
    values = json.loads(ran.stdout)
    return {name: values[name] for name in SHOWN} | {"tf-idf": values["baseline"]["tf-idf"]}


def trained(model: str, data: Path, steps: int, rate: float, batch: int, workdir: Path) -> Any:
    """Trains a model; returns the CPU minutes and the largest memory, in GB, that it took."""
    fields = {
        "train.init_from": model,
        "data.path": data / "train.jsonl",
        "data.eval_path": data / "dev.jsonl",
        "data.length": LENGTH,
        "train.steps": steps,
        "train.batch_size": batch,
        "train.eval_every": steps,
        "train.checkpoint_every": steps,
        "train.log_every": 10,
        "optimizer.warmup_steps": max(1, steps // 10),
        "optimizer.learning_rate": rate,
        "model.dropout": 0.0,
    }
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    args = command("train", "--config=sentences", f"--workdir={workdir}", *flags)
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with (workdir.parent / f"{workdir.name}.log").open("w") as log:
        process = subprocess.Popen(args, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(args)}: failed; see {workdir}.log")
    return {"minutes": (usage.ru_utime + usage.ru_stime) / 60, "gb": usage.ru_maxrss / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--steps", action="append", required=True, type=int)
    parser.add_argument("--rate", action="append", type=float, default=[])
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    results = {}
    for i, (named, steps) in enumerate(zip(args.model, args.steps, strict=True)):
        name, _, folder = named.partition("=")
        rate = args.rate[i] if i < len(args.rate) else 2e-5
        workdir = args.out / name
        result: dict[str, Any] = {"steps": steps, "rate": rate}
        result["before"] = measured(folder, args.data)
        result |= trained(folder, args.data, steps, rate, args.batch, workdir)
        result["after"] = measured(str(workdir), args.data)
        results[name] = result
        (args.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        print(name, json.dumps(result))


if __name__ == "__main__":
    main()
