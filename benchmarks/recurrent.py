"""Recurrent language models beside a transformer, with equal parameters and tokens: a table, and a
picture of their learning.

    make compare      # python -m benchmarks.recurrent --out docs/recurrent

Four models of two pre-norm layers of width 128 read the docstrings of the installed packages. The
number of units of each recurrent layer is the one with which the model has as many parameters as
the transformer. Each trains at every rate of RATES, and the better end counts. Speed is counted in
seconds of processor time, which other programs do not change much.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib

import flaxformer_lite
from flaxformer_lite import ModelConfig, Rope, build_model
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.contrib.recurrent.models import recurrent
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.registry import resolve_class
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start import initial_state, setup

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CELLS = ("rnn", "lstm", "gru")
RATES = (1e-3, 3e-3)
SIZES: dict[str, Any] = dict(vocab_size=2048, d_model=128, decoder_layers=2, dropout=0.0)
BATCH = 16
LENGTH = 128
TIMED = 10


class Result(NamedTuple):
    name: str
    model: ModelConfig
    rate: float
    evaluations: list[dict]  # held-out records, by step
    speed: float  # tokens per second of processor time, in training


def count(model: ModelConfig) -> int:
    """Counts the parameters of a model."""
    shapes = jax.eval_shape(
        build_model(model).init, jax.random.key(0), jax.numpy.zeros((1, 8), jax.numpy.int32)
    )
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def models() -> dict[str, ModelConfig]:
    """Returns the transformer, and recurrent models as large as it."""
    transformer = gpt2.config("tiny", **SIZES, position=Rope())

    def cell(name: str, units: int) -> ModelConfig:
        wiring = dict(residual="sequential", norm_at=("in", "final"), tie_embeddings=True)
        return recurrent.config(
            "tiny", **SIZES, **wiring, mixer=resolve_class("mixers", name)(units=units)
        )

    wanted = count(transformer)
    found = {}
    for name in CELLS:
        units = min(
            range(64, 512, 2), key=lambda units, name=name: abs(count(cell(name, units)) - wanted)
        )
        found[name] = cell(name, units)
    return {"transformer": transformer, **found}


def experiment(model: ModelConfig, rate: float, steps: int) -> ExperimentConfig:
    return ExperimentConfig(
        model=model,
        objective=CausalLm(),
        data=DataConfig(
            corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=2000), length=LENGTH
        ),
        optimizer=OptimizerConfig(learning_rate=rate, warmup_steps=steps // 10),
        train=TrainConfig(
            steps=steps,
            batch_size=BATCH,
            log_every=50,
            eval_every=max(steps // 8, 1),
            checkpoint_every=steps,
        ),
    )


def speed(cfg: ExperimentConfig) -> float:
    """Measures tokens per second of processor time over steps of training, after two."""
    ready = setup.prepare_experiment(cfg)
    batch = next(ready.train_batches(0))
    state = initial_state.initial_state(ready)
    begun = 0.0
    for step in range(TIMED + 2):
        if step == 2:
            begun = time.process_time()
        state, logged = ready.train_step(state, batch)
        float(logged["loss"])
    return TIMED * BATCH * LENGTH / (time.process_time() - begun)


def train(name: str, model: ModelConfig, steps: int, folder: Path) -> Result:
    """Trains at each rate; returns the run with the best end."""
    ends = []
    for rate in RATES:
        where = folder / f"{name}-{rate:g}"
        cfg = experiment(model, rate, steps)
        flaxformer_lite.run(cfg, where)
        records = [row for row in metrics.read(where / "metrics.jsonl") if row["split"] == "eval"]
        ends.append((records[-1]["bits_per_byte"], rate, records))
    _, rate, records = min(ends)
    return Result(name, model, rate, records, speed(experiment(model, rate, steps)))


def table(results: list[Result]) -> str:
    rows = [
        (
            "| layer | units | parameters | rate | held-out loss | bits per byte | tokens per CPU"
            " second |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, model, rate, evaluations, tokens in results:
        units = getattr(model.mixer, "units", "")
        last = evaluations[-1]
        rows.append(
            f"| {name} | {units} | {count(model):,} | {rate:g} | {last['loss']:.3f} |"
            f" {last['bits_per_byte']:.3f} | {tokens:,.0f} |"
        )
    return "\n".join(rows)


def draw(results: list[Result], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, _, _, evaluations, _ in results:
        rows = [row for row in evaluations if row["step"]]
        axis.plot(
            [row["step"] * BATCH * LENGTH / 1e3 for row in rows],
            [row["bits_per_byte"] for row in rows],
            marker="o",
            markersize=3,
            label=name,
        )
    axis.set_xlabel("thousand tokens read")
    axis.set_ylabel("bits per byte of held-out text")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the picture's path without .png")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--runs", type=Path, default=Path("runs/compare"))
    args = parser.parse_args()
    results = [train(name, model, args.steps, args.runs) for name, model in models().items()]
    draw(results, args.out.with_suffix(".png"))
    print(table(results))


if __name__ == "__main__":
    main()
