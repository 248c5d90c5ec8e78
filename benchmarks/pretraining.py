"""Compares ways to pretrain an encoder at equal FLOPs: BERT, ELECTRA and DeBERTa-v3.

    python -m benchmarks.pretraining                   # all, three seeds each
    python -m benchmarks.pretraining --teraflops=1000  # more pretraining
    python -m benchmarks.pretraining --quick           # a few steps, to see that it runs

Each has two layers of width 128 and learns from the docstrings of the installed packages, for as
many steps as the FLOPs of its train step allow, its generator's included. Then it is fine-tuned to
tell from which of twelve subpackages a docstring is (2000 examples), and judged on 2000 others; so
is a BERT with random weights. Tokenizer, rows, optimizer and learning rate are the same for all,
and none is tuned; the seed draws weights, batches and masks.

Runs are kept in runs/pretraining: a command that was stopped continues.
"""

import argparse
import ast
import collections
import contextlib
import csv
import dataclasses
import importlib.util
import json
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flaxformer_lite
from flaxformer_lite import pages
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.models import bert, deberta_v2, electra
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.objectives.text.replaced_tokens import ReplacedTokens
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.adopt import read_experiment

PACKAGES = ("numpy", "scipy", "jax", "flax", "optax")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CLASSES = 12
ROWS = 2000  # of each split
SHORTEST = 80  # characters
RANDOM = "random weights"
TUNING = 200  # steps
SIZES: dict[str, Any] = dict(vocab_size=4096, max_length=64, dropout=0.0, init_stddev=0.05)
DEBERTA = ReplacedTokens(
    generator_size=1.0, generator_layers=0.5, detection_weight=10.0, embeddings="disentangled"
)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is trained, and how fast.

    Attributes:
      teraflops: of pretraining.
      steps: of pretraining, instead; 0 for none.
      tuning: steps of fine-tuning.
      rate: learning rate of pretraining.
    """

    teraflops: float
    steps: int
    tuning: int
    rate: float


def subjects() -> dict[str, tuple[ModelConfig, Any]]:
    """Returns the models and their objectives, by name."""
    return {
        "BERT": (bert.config("tiny", head="masked_lm", **SIZES), MaskedLm()),
        "ELECTRA": (electra.config("tiny", head="pretraining", **SIZES), ReplacedTokens()),
        "DeBERTa-v3": (deberta_v2.config("tiny", head="pretraining", **SIZES), DEBERTA),
    }


def labelled() -> Iterator[tuple[str, str]]:
    """Yields (docstring, subpackage), each docstring once."""
    seen = set()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None, "a requirement of this package"
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if len(parts) < 2 or "tests" in parts:
                continue
            with contextlib.suppress(SyntaxError, UnicodeDecodeError, ValueError):
                for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                    text = (isinstance(node, DOCUMENTED) and ast.get_docstring(node)) or ""
                    if len(text) >= SHORTEST and text not in seen:
                        seen.add(text)
                        yield text, f"{package}.{parts[0]}"


def write_tables(folder: Path) -> None:
    """Writes train.csv and dev.csv: docstrings of the subpackages that have the most."""
    rows = list(labelled())
    counts = collections.Counter(name for _, name in rows)
    kept = {name for name, _ in counts.most_common(CLASSES)}
    rows = [row for row in rows if row[1] in kept]
    random.Random(0).shuffle(rows)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", rows[:ROWS]), ("dev", rows[ROWS : 2 * ROWS])):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(part)


def pretraining(name: str, seed: int, effort: Effort) -> ExperimentConfig:
    """Returns the experiment that pretrains a subject, for as many steps as its FLOPs allow."""
    model, objective = subjects()[name]
    cfg = ExperimentConfig(
        model=model,
        objective=objective,
        data=DataConfig(corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=4096), length=64),
        optimizer=OptimizerConfig(
            learning_rate=effort.rate, warmup_steps=50, b2=0.999, weight_decay=0.01
        ),
        train=TrainConfig(
            steps=effort.steps or 1, batch_size=32, log_every=50, eval_every=0, checkpoint_every=0
        ),
        seed=seed,
    )
    steps = effort.steps
    if not steps:
        flops = setup.prepare_experiment(cfg).program.flops_per_step
        steps = max(1, round(effort.teraflops * 1e12 / flops))
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, steps=steps))


def tuning(start: Path | None, tables: Path, seed: int, effort: Effort) -> ExperimentConfig:
    """Returns the experiment that fine-tunes a pretrained model, or a BERT from random weights."""
    page = pages.get_config("classify")
    page.seed = seed
    page.model.update(SIZES)
    page.data.update(path=str(tables / "train.csv"), eval_path=str(tables / "dev.csv"), length=64)
    page.optimizer.learning_rate = 5e-4
    page.train.update(steps=effort.tuning, eval_every=effort.tuning, checkpoint_every=0)
    if start is not None:
        page.train.init_from = str(start)
    return read_experiment(page)


def accuracy(workdir: Path) -> float:
    """Returns the last accuracy on the held-out rows that a run has recorded."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    values = [record["accuracy"] for record in records if record["split"] == "eval"]
    return values[-1]


def measure(runs: Path, seeds: int, effort: Effort) -> Iterator[dict[str, Any]]:
    """Trains each subject with each seed, seed by seed, and yields the results."""
    tables = runs / "tables"
    if not (tables / "dev.csv").exists():
        write_tables(tables)
    for seed in range(seeds):
        for name in (*subjects(), RANDOM):
            folder = runs / f"{name}-{seed}".replace(" ", "_")
            result = folder / "result.json"
            if not result.exists():
                steps = 0
                start = None
                if name != RANDOM:
                    cfg = pretraining(name, seed, effort)
                    steps = cfg.train.steps
                    start = folder / "pretrained"
                    flaxformer_lite.run(cfg, start)
                flaxformer_lite.run(tuning(start, tables, seed, effort), folder / "tuned")
                score = accuracy(folder / "tuned")
                result.write_text(json.dumps({"name": name, "steps": steps, "accuracy": score}))
            yield json.loads(result.read_text())


def table(results: list[dict[str, Any]]) -> str:
    """Returns the table of the results, one row a subject."""
    lines = ["| pretrained as | steps | accuracy, mean | by seed |", "|---|---:|---:|---|"]
    for name in dict.fromkeys(result["name"] for result in results):
        own = [result for result in results if result["name"] == name]
        scores = [result["accuracy"] for result in own]
        each = ", ".join(f"{score:.1%}" for score in scores)
        lines.append(f"| {name} | {own[0]['steps']:,} | {statistics.mean(scores):.1%} | {each} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--teraflops", type=float, default=30.0, help="of each pretraining; 30 by default"
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of pretraining")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed and a few steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretraining"))
    args = parser.parse_args(arguments)
    steps = (2, 2) if args.quick else (0, TUNING)
    effort = Effort(args.teraflops, *steps, args.rate)
    results = []
    for result in measure(args.runs, 1 if args.quick else args.seeds, effort):
        results.append(result)
        print(table(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
