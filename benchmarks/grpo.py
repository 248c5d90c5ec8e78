"""Reinforcement learning of a tiny model on a task with one right answer, over seeds.

    python -m benchmarks.grpo --seeds 0 1 2

The right answer is the three letters of a prompt in reverse. Supervised steps teach the model to
write them in any order, so that one answer of six is right; rewards teach it the order. Prints the
share of right answers to held-out prompts, which the model writes greedily, before and after, and
how long both took.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np

import flaxformer_lite
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.contrib.rl.objectives.grpo import Grpo
from flaxformer_lite.models import llama
from flaxformer_lite.objectives.tables.instruction import Instruction
from flaxformer_lite.runs.report import metrics

LETTERS = "abcdefgh"
HELD_OUT = 64
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% else %}"
    "={% endif %}{% endfor %}"
)
MODEL = llama.config(
    "tiny", vocab_size=0, d_model=64, num_heads=4, mlp_dim=192, decoder_layers=2, max_length=32
)


def write_rows(folder: Path, is_right: bool) -> tuple[str, str]:
    """Writes all prompts, of which HELD_OUT are held out, with the right answer or any."""
    rng = np.random.default_rng(0)
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    words = [words[i] for i in np.random.default_rng(0).permutation(len(words))]
    paths = []
    for name, part in (("eval", words[:HELD_OUT]), ("train", words[HELD_OUT:])):
        path = folder / f"{name}.jsonl"
        rows = []
        for word in part:
            answer = word[::-1]
            if not is_right:
                answer = "".join(rng.permutation(list(word)))
            rows.append(json.dumps({"prompt": word, "answer": answer}))
        path.write_text("\n".join(rows) + "\n")
        paths.append(str(path))
    return paths[1], paths[0]


def train(folder: Path, objective, rate: float, seed: int, init_from: str = "", **options) -> Path:
    """Trains, and returns the workdir."""
    train_path, eval_path = write_rows(folder, isinstance(objective, Grpo))
    cfg = ExperimentConfig(
        seed=seed,
        model=MODEL,
        objective=objective,
        data=DataConfig(
            path=train_path,
            eval_path=eval_path,
            cache=str(folder / "cache"),
            length=12,
            tokenizer=TokenizerConfig(name="bytes"),
        ),
        optimizer=OptimizerConfig(
            learning_rate=rate, warmup_steps=10, schedule="constant", weight_decay=0.0
        ),
        train=TrainConfig(init_from=init_from, loss_chunks=1, eval_batches=1, **options),
        mesh=MeshConfig(data=1),
    )
    workdir = folder / type(objective).__name__
    flaxformer_lite.run(cfg, workdir)
    return workdir


def rewards(workdir: Path) -> list[tuple[int, float]]:
    held_out = [r for r in metrics.read(workdir / "metrics.jsonl") if r["split"] == "eval"]
    return [(record["step"], record["reward"]) for record in held_out]


def run_seed(seed: int, supervised: int, steps: int, rate: float) -> dict:
    """Returns the curve of held-out rewards, and seconds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start = time.perf_counter()
        common = {"batch_size": 32, "log_every": 50, "checkpoint_every": 1000}
        first = train(
            folder,
            Instruction(template=TEMPLATE, scored_by="none"),
            3e-3,
            seed,
            steps=supervised,
            eval_every=1000,
            **common,
        )
        begun = time.perf_counter()
        task = Grpo(template=TEMPLATE, group=8, answer_length=4, score_rows=HELD_OUT)
        second = train(
            folder, task, rate, seed, str(first), steps=steps, eval_every=steps // 8, **common
        )
        last = [r for r in metrics.read(second / "metrics.jsonl") if r["split"] == "train"][-1]
        seconds = {name: value for name, value in last.items() if name.startswith("seconds_")}
        return {
            "seed": seed,
            "curve": rewards(second),
            "supervised_seconds": round(begun - start, 1),
            "seconds": round(time.perf_counter() - begun, 1),
            "last_interval": seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--supervised", type=int, default=150)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=3e-4)
    args = parser.parse_args()
    results = [run_seed(s, args.supervised, args.steps, args.rate) for s in args.seeds]
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
