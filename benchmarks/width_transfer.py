"""The best learning rate at each width, by the standard rule and by muP.

    nice -n 10 python -m benchmarks.width_transfer     # docs/width_transfer.png and a table

A GPT of one layer is trained at widths from 64 to 512 and learning rates that double, on the same
100 batches of bytes of the built-in text. With `model.width_rule=mup` the widths should share their
best rate; with the standard rule it falls with the width.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks import small_runs
from flaxformer_lite.config import ExperimentConfig, OptimizerConfig, TrainConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm

WIDTHS = (64, 128, 256, 512)
RULES = ("standard", "mup")
RATES = tuple(2.0**-power for power in range(12, 4, -1))
LENGTH = 32


def experiment(width: int, rule: str, steps: int) -> ExperimentConfig:
    fields = {"width_rule": "mup", "base_width": WIDTHS[0]} if rule == "mup" else {}
    model = gpt2.config(
        "tiny",
        vocab_size=0,
        d_model=width,
        num_heads=width // 32,
        mlp_dim=2 * width,
        decoder_layers=1,
        max_length=LENGTH,
        dropout=0.0,
        init_stddev=WIDTHS[0] ** -0.5,
        **fields,
    )
    optimizer = OptimizerConfig(
        learning_rate=1.0, warmup_steps=10, schedule="linear", final_fraction=0.0, weight_decay=0.0
    )
    return ExperimentConfig(
        model=model,
        objective=CausalLm(),
        data=small_runs.text(LENGTH),
        optimizer=optimizer,
        train=TrainConfig(steps=steps, batch_size=16, loss_chunks=1),
    )


def table(losses: dict[str, list[list[float]]]) -> str:
    """Returns the losses as markdown; the best rate of each width is bold."""
    header = " | ".join(f"2^{int(np.log2(rate))}" for rate in RATES)
    lines = [f"| rule | width | {header} |", f"|---|---:|{'---:|' * len(RATES)}"]
    for rule, by_width in losses.items():
        for width, row in zip(WIDTHS, by_width, strict=True):
            cells = [f"{loss:.3f}" for loss in row]
            best = int(np.nanargmin(row))
            cells[best] = f"**{cells[best]}**"
            lines.append(f"| {rule} | {width} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(losses: dict[str, list[list[float]]], path: Path) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (rule, by_width) in zip(axes, losses.items(), strict=True):
        for width, row in zip(WIDTHS, by_width, strict=True):
            (line,) = axis.plot(RATES, row, marker=".", label=f"width {width}")
            best = int(np.nanargmin(row))
            axis.plot(RATES[best], row[best], "o", ms=9, mfc="none", color=line.get_color())
        axis.set_xscale("log", base=2)
        axis.set_xlabel("learning rate")
        axis.set_title({"standard": "standard", "mup": "model.width_rule=mup"}[rule])
        axis.grid(alpha=0.3)
    lowest = min(min(row) for rows in losses.values() for row in rows)
    axes[0].set_ylim(lowest - 0.05, lowest + 1.0)
    axes[0].set_ylabel("held-out loss, nats a byte")
    axes[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--results", type=Path, default=Path("runs/width_transfer.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/width_transfer.png"))
    args = parser.parse_args()
    losses = json.loads(args.results.read_text()) if args.results.exists() else {}
    for rule in RULES:
        rows = losses.setdefault(rule, [])
        for width in WIDTHS[len(rows) :]:
            cfg = small_runs.sized(experiment(width, rule, args.steps))
            rows.append(small_runs.train(cfg, list(RATES))[:, 0].tolist())
            print(
                rule, width, np.round(rows[-1], 3), f"{time.process_time():.0f} CPU s", flush=True
            )
            args.results.parent.mkdir(parents=True, exist_ok=True)
            args.results.write_text(json.dumps(losses))
    plot(losses, args.out)
    print(table(losses))


if __name__ == "__main__":
    main()
