"""Measures a task on a large table, and a model of language on a large text: opening them the first
time and again, and examples in any order.

    python -m benchmarks.large_table --rows=1000000 --megabytes=200
    python -m benchmarks.large_table --rows=1000000 --megabytes=200 --datasets=PYTHON

Each measurement is a process of its own, or several with --processes, which share a cache and whose
CPU time is added; `--turns` repeats all of them, and the least of each is shown. The first batch
counts from the start of the program. With --datasets, load_dataset and map(tokenize, batched) of
Hugging Face's datasets do the same with the same files and tokenizer, by the python that has them.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WORDS = 20_000  # of the invented language
EXAMPLES = 10_000  # that are drawn
THEIRS = """
import resource, sys, time
import numpy as np
from datasets import load_dataset
from tokenizers import Tokenizer
path, tokenizer, cache, kind, processes = sys.argv[1:]
words = Tokenizer.from_file(tokenizer)
def encode(rows):
    return {"ids": [one.ids for one in words.encode_batch(rows["text"])]}
rows = load_dataset(kind, data_files=path, cache_dir=cache, split="train")
workers = int(processes) if int(processes) > 1 else None
rows = rows.map(encode, batched=True, remove_columns=["text"], num_proc=workers)
rows[:8]
first = time.time()
opened = time.perf_counter()
for row in np.random.default_rng(0).integers(len(rows), size=10_000).tolist():
    rows[row]
print(first, time.perf_counter() - opened)
"""


def write_files(folder: Path, rows: int, megabytes: int) -> None:
    """Writes a csv of short texts with labels, and a text of one document per line."""
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefghiklmnoprstuw", k=draw.randint(2, 9))) for _ in range(WORDS)
    ]
    weights = [1 / (rank + 5) for rank in range(WORDS)]

    def line(least: int, most: int) -> str:
        return " ".join(draw.choices(words, weights, k=draw.randint(least, most)))

    with open(folder / "rows.csv", "w") as file:
        file.write("text,label\n")
        for row in range(rows):
            file.write(f"{line(8, 28)},{'abc'[row % 3]}\n")
    with open(folder / "text.txt", "w") as file:
        size = 0
        while size < megabytes * 1e6:
            size += file.write(f"{line(20, 200)}\n")


def open_ours(folder: Path, kind: str) -> None:
    """Opens the file as a run does, and draws examples."""
    from flaxformer_lite.config import DataConfig, ExperimentConfig, TokenizerConfig
    from flaxformer_lite.data.dataset import open_dataset
    from flaxformer_lite.models import bert, gpt2
    from flaxformer_lite.objectives.base import Objective
    from flaxformer_lite.objectives.tables.classification import Classification
    from flaxformer_lite.objectives.text.causal_lm import CausalLm

    name = "text.txt"
    model = gpt2.config("tiny", vocab_size=0)
    objective: Objective = CausalLm()
    if kind == "csv":
        name = "rows.csv"
        model = bert.config("tiny", vocab_size=0, head="sequence_classification")
        objective = Classification(labels=("a", "b", "c"))
    tokenizer = TokenizerConfig(path=str(folder / "tokenizer.json"))
    data = DataConfig(
        path=str(folder / name),
        cache=str(folder / "cache"),
        tokenizer=tokenizer,
        length=128,
        eval_fraction=0.01,
    )
    dataset = open_dataset(ExperimentConfig(model=model, objective=objective, data=data))
    next(iter(dataset.batches(batch_size=8)))
    first = time.time()
    opened = time.perf_counter()
    rows = np.random.default_rng(0).integers(dataset.num_examples, size=EXAMPLES)
    for row in rows.tolist():
        dataset.example(row, 0, 0)
    print(first, time.perf_counter() - opened)


def train_tokenizer(folder: Path) -> None:
    from flaxformer_lite.config import TokenizerConfig
    from flaxformer_lite.text import tokenizer_training

    with open(folder / "text.txt") as file:
        texts = [line for line, _ in zip(file, range(20_000), strict=False)]
    made = folder / "made"
    made.mkdir()
    tokenizer_training.train(TokenizerConfig(vocab_size=8000), texts).save(made)
    (made / "tokenizer.json").rename(folder / "tokenizer.json")


def measure(command: list[str], folder: Path, processes: int = 1) -> dict[str, float]:
    """Runs a process, or several at once; returns what they took, and the size of what they wrote.

    The time of the first batch and of examples is the slowest's; the memory is the largest's,
    without that of its own workers.
    """
    begun = time.time()
    started = []
    for _ in range(processes):
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, text=True, **pipe))
    firsts = []
    examples = []
    seconds = 0.0
    memory = 0.0
    for process in started:
        out = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)[:200]}: ended with {status}")
        first, drawn = map(float, out.split()[-2:])
        firsts.append(first - begun)
        examples.append(drawn)
        seconds += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))
    return {
        "CPU s": seconds,
        "first batch, s": max(firsts),
        "MB": memory,
        "10,000 examples, s": max(examples),
        "disk, MB": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--datasets", default="", help="a python that has datasets")
    parser.add_argument("--folder", type=Path, default=Path("runs/large_table"))
    parser.add_argument("--open", choices=["csv", "text"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.absolute()
    if options.open:
        open_ours(folder, options.open)
        return
    if not (folder / "tokenizer.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_files(folder, options.rows, options.megabytes)
        train_tokenizer(folder)
    results: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for _ in range(options.turns):
        for kind, name in (("csv", "rows.csv"), ("text", "text.txt")):
            commands = {
                "ours": [
                    sys.executable,
                    "-m",
                    "benchmarks.large_table",
                    f"--open={kind}",
                    f"--folder={folder}",
                ]
            }
            if options.datasets:
                files = [str(folder / name), str(folder / "tokenizer.json"), str(folder / "theirs")]
                workers = str(options.processes)
                commands["datasets"] = [options.datasets, "-c", THEIRS, *files, kind, workers]
            for who, command in commands.items():
                cache = folder / ("theirs" if who == "datasets" else "cache")
                shutil.rmtree(cache, ignore_errors=True)
                for start in ("first", "again"):
                    # theirs starts its workers itself
                    count = options.processes if who == "ours" else 1
                    found = measure(command, cache, count)
                    results.setdefault((kind, who, start), []).append(found)
    print(json.dumps({"rows": options.rows, "megabytes": options.megabytes}))
    names = list(next(iter(results.values()))[0])
    print("| file | by | start | " + " | ".join(names) + " |")
    print("|---|---|---|" + "---:|" * len(names))
    for keys, turns in results.items():
        least = [min(turn[name] for turn in turns) for name in names]
        print("| " + " | ".join([*keys, *(f"{value:,.2f}" for value in least)]) + " |")


if __name__ == "__main__":
    main()
