"""Compares eight experts with a dense model of equal FLOPs, on the built-in corpus.

    python -m benchmarks.experts           # three seeds of each
    python -m benchmarks.experts --quick   # a few steps, to see that it runs

The experts are those of the page moe_tiny, two of eight for each token, with a vocabulary of 2,048.
The dense model differs in its feed-forward only, which is as wide as a token's experts and their
router cost. Both see the same rows in the same order, with one learning rate that is tuned for
neither; the seed draws weights and the order. Runs are kept in runs/experts: a command that was
stopped continues.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import jax

from flaxformer_lite import pages
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.runs import loop
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.adopt import read_experiment

# of the dense layer: two experts of 172, and at least the FLOPs of a router over eight
WIDTH = 348
SUBJECTS = ("experts", "dense")


class Result(NamedTuple):
    """The losses, size and cost of one run.

    Attributes:
      subject: one of SUBJECTS.
      parameters: of the model.
      flops: of a token, forwards and backwards.
      steps: of training.
      losses: of the held-out rows, in nats a token, by step.
      seconds: a step on this machine, by the run's median.
    """

    subject: str
    parameters: int
    flops: float
    steps: int
    losses: dict[str, float]
    seconds: float


def experiment(subject: str, seed: int, steps: int) -> ExperimentConfig:
    """Returns the experiment of a subject."""
    page = pages.get_config("moe_tiny")
    page.seed = seed
    page.train.update(steps=steps, eval_every=steps, checkpoint_every=0)
    page.train.sample_tokens = 0
    page.model.vocab_size = 0
    page.data.tokenizer.vocab_size = 2048
    cfg = read_experiment(page)
    if subject == "experts":
        return cfg
    model = dataclasses.replace(cfg.model, feed_forward=None, mlp_dim=WIDTH)
    return dataclasses.replace(cfg, model=model)


def measure(subject: str, seed: int, steps: int, workdir: Path) -> Result:
    """Trains a subject, or reads what an earlier command has trained."""
    stored = workdir / "result.json"
    if not stored.exists():
        cfg = experiment(subject, seed, steps)
        program = setup.prepare(cfg).program
        loop.run(cfg, workdir)
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses = {
            str(record["step"]): record["nll"] for record in records if record["split"] == "eval"
        }
        seconds = [one["step_seconds"] for one in records if "step_seconds" in one]
        sizes = [leaf.size for leaf in jax.tree.leaves(program.target.params)]
        flops = program.flops_per_step / program.tokens_per_step
        result = Result(subject, sum(sizes), flops, steps, losses, statistics.median(seconds))
        stored.write_text(json.dumps(result._asdict()))
    return Result(**json.loads(stored.read_text()))


def table(results: list[Result]) -> str:
    """Returns the table of the results, one row a subject."""
    lines = [
        "| | parameters | FLOPs a token | held-out loss, mean | spread | by seed |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for subject in SUBJECTS:
        own = [result for result in results if result.subject == subject]
        if not own:
            continue
        last = [result.losses[str(result.steps)] for result in own]
        spread = max(last) - min(last)
        each = ", ".join(f"{loss:.3f}" for loss in last)
        lines.append(
            f"| {subject} | {own[0].parameters:,} | {own[0].flops:,.0f} |"
            f" {statistics.mean(last):.3f} | {spread:.3f} | {each} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed and three steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/experts"))
    args = parser.parse_args(arguments)
    steps = 3 if args.quick else args.steps
    results: list[Result] = []
    for seed in range(1 if args.quick else args.seeds):
        for subject in SUBJECTS:
            results.append(measure(subject, seed, steps, args.runs / f"{subject}-{seed}-{steps}"))
            print(table(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
