"""Fine-tuning a classifier on short texts, beside transformers with dynamic padding.

    make sentiment    # fetches rated sentences of film reviews into runs/reviews
    python -m benchmarks.fine_tuning --torch=/path/to/python --data=runs/reviews

Both sides start from the same weights of the page `classify` (a BERT of two layers of width 128,
batches of 32), and read the same batches, tokenized alike, in the same order. Ours is the step of a
run, at data.length=128; theirs is BertForSequenceClassification with fused AdamW, each batch padded
to its longest text, as DataCollatorWithPadding does. They take turns of some steps, so that a
disturbance of the machine affects both; each has one process, which takes all the cores it wants.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AHEAD = 2  # steps in flight, as in a run
TURN = 40  # steps of a turn
REST = 0.3  # seconds between turns: threads of the last one stop spinning


def ours(data: Path, folder: Path, epochs: float, rate: float, seed: int) -> None:
    """Serves turns of this package's steps; writes weights and batches for the other side first."""
    import jax
    import numpy as np

    from flaxformer_lite import pages, save_pretrained
    from flaxformer_lite.config import ExperimentConfig, from_config_dict
    from flaxformer_lite.objectives.rows import packed_shape
    from flaxformer_lite.runs import padding
    from flaxformer_lite.runs.start.initial_state import initial_state
    from flaxformer_lite.runs.start.setup import prepare_experiment
    from flaxformer_lite.training import evaluate
    from flaxformer_lite.training.program import tokens

    page = pages.get_config("classify")
    page.data.path = str(data / "train.csv")
    page.data.eval_path = str(data / "dev.csv")
    page.train.epochs = epochs
    page.train.steps = 0
    page.optimizer.learning_rate = rate
    page.seed = seed
    run = prepare_experiment(from_config_dict(ExperimentConfig, page))
    program = run.program
    steps = run.cfg.train.steps
    state = initial_state(program, "")
    save_pretrained(folder / "model", program.model, program.saved_params(state.params))
    find = run.train_data.finder(seed)
    size = run.cfg.train.batch_size
    order = [find(i)[1] for i in range(steps * size)]
    arrays: dict[str, Any] = {"order": np.asarray(order), "size": size, "steps": steps}
    for split, records in run.train_data.splits.items():
        arrays[f"{split}_ids"] = records.column("ids")
        arrays[f"{split}_counts"] = records.lengths("ids")
        arrays[f"{split}_labels"] = records.column("label")
    rates = run.cfg.optimizer
    arrays |= {"warmup": rates.warmup(steps), "rate": rates.learning_rate}
    arrays |= {"decay": rates.weight_decay, "clip": rates.clip_norm, "b2": rates.b2}
    np.savez(folder / "data.npz", **arrays)
    compiled = {
        packed_shape(batch): program.train_step.lower(program.target, batch).compile()
        for batch in (*program.shapes("train_step"), padding.unpacked(program.batch))
    }
    batches = run.train_batches(0)

    def train(count: int) -> dict[str, float]:
        nonlocal state
        flight: collections.deque[Any] = collections.deque()
        losses = []
        sums: collections.Counter[str] = collections.Counter()
        for _ in range(count):
            batch = next(batches)
            state, metrics = compiled[packed_shape(batch)](state, batch)
            flight.append((metrics, batch))
            while len(flight) > AHEAD or (len(flight) and len(losses) + len(flight) == count):
                values, done = flight.popleft()
                losses.append(float(jax.device_get(values)["loss"]))
                sums["computed"] += tokens(done)
                sums["real"] += int(np.asarray(done["inputs"]["attention_mask"]).sum())
        return {**sums, "loss": statistics.mean(losses)}

    def score() -> dict[str, float]:
        total, predictions = evaluate.run(
            program.eval_step, state.params, run.eval_batches(), run.eval_data
        )
        return {
            "accuracy": evaluate.metrics_of(
                program.cfg.objective, total, predictions, run.eval_data
            )["accuracy"]
        }

    serve(train, score, {"steps": steps, "jax": jax.__version__})


def serve(train: Any, score: Any, about: dict[str, Any]) -> None:
    """Answers requests: a number of steps to train, or `score`."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        value = score() if line.strip() == "score" else train(int(line))
        taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(value | taken), flush=True)


class Side:
    """A process that serves turns."""

    def __init__(self, python: str, module: str, arguments: list[str]):
        command = [python, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.about = self._answer()
        self.turns: list[dict[str, float]] = []

    def ask(self, request: Any) -> dict[str, float]:
        assert self._process.stdin
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # a library's own output
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def compare(args: argparse.Namespace) -> str:
    """Trains both sides in turns; returns a table in Markdown."""
    with tempfile.TemporaryDirectory() as temporary:
        shared = [f"--folder={temporary}", f"--seed={args.seed}"]
        given = [f"--data={args.data.absolute()}", f"--epochs={args.epochs}", f"--rate={args.rate}"]
        sides = {"flaxformer_lite": Side(sys.executable, "benchmarks.fine_tuning", given + shared)}
        shared.append(f"--threads={args.threads}")
        sides["transformers"] = Side(args.torch, "benchmarks.fine_tuning_torch", shared)
        left = sides["flaxformer_lite"].about["steps"]
        while left:
            count = min(TURN, left)
            for side in sides.values():
                time.sleep(REST)
                side.turns.append({"steps": count, **side.ask(count)})
            left -= count
        scores = {name: side.ask("score")["accuracy"] for name, side in sides.items()}
        for side in sides.values():
            side.close()
    versions = {name: text for side in sides.values() for name, text in side.about.items()}
    head = (
        "| | ms a step | CPU ms a step | computed / real tokens | held-out accuracy | last loss |"
    )
    lines = [head, "|---|--:|--:|--:|--:|--:|"]
    for name, side in sides.items():
        timed = [turn for turn in side.turns[1:] if turn["steps"] == TURN]  # the first one warms up
        wall, cpu = (
            statistics.median(turn[clock] / turn["steps"] for turn in timed) * 1e3
            for clock in ("wall", "cpu")
        )
        filled = sum(turn["computed"] for turn in side.turns) / sum(
            turn["real"] for turn in side.turns
        )
        lines.append(
            f"| {name} | {wall:.1f} | {cpu:.1f} | {filled:.2f} | {scores[name]:.1%} |"
            f" {side.turns[-1]['loss']:.3f} |"
        )
    pairs = zip(*(side.turns[1:] for side in sides.values()), strict=True)
    ratios = [(theirs["wall"] / own["wall"], theirs["cpu"] / own["cpu"]) for own, theirs in pairs]
    wall, cpu = (statistics.median(ratio[i] for ratio in ratios) for i in (0, 1))
    lines.append(
        f"\nMedian ratio of turns: {wall:.2f} by the clock, {cpu:.2f} in CPU time;"
        f" {versions.pop('steps')} steps, seed {args.seed}, "
        + ", ".join(f"{name} {text}" for name, text in versions.items())
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of train.csv and dev.csv")
    parser.add_argument("--torch", help="a python with torch and transformers")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=5e-5, help="the peak; the page's by default")
    parser.add_argument("--seed", type=int, default=0)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="those of torch")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        ours(args.data, args.folder, args.epochs, args.rate, args.seed)
        os._exit(0)  # threads that load batches are still waiting
    if not args.torch:
        parser.error("--torch: name a python that has torch and transformers.")
    print(compare(args))


if __name__ == "__main__":
    if any(argument.startswith("--folder") for argument in sys.argv):
        from flaxformer_lite.runtime import environment

        environment.configure()  # as every command of the package does, before jax
    main()
