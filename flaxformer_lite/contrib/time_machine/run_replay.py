"""Replays a step of a run, and prints the loss of each of its rows."""

import argparse
import math
from pathlib import Path

import numpy as np

from flaxformer_lite.cli.open_model import folder_of, print_notice
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.time_machine import replay
from flaxformer_lite.contrib.time_machine.run_steps import format_row, join_places
from flaxformer_lite.runs.batch_history import BatchHistory


def run(args: argparse.Namespace) -> None:
    """Prints the step's metrics, and its rows by their loss."""
    folder = folder_of(args.workdir)
    output = Path(args.output) if args.output else None
    if output and output.exists():
        raise ConfigError(f"--output={output}: exists already; name a new folder.")
    point = replay.before_step(folder, args.at, allow_plugins=args.allow_plugins)
    for line in point.notices:
        print_notice(line)
    cfg = point.experiment.cfg
    origin = f"checkpoint {point.start}" if point.start else "the first step"
    losses = replay.row_losses(point)
    state, values = replay.take(point)
    print(f"step {args.at} of {cfg.train.steps}, run again from {origin}")
    print(comparison(replay.compare(folder, {**point.values, args.at: values})))
    print("  ".join(f"{name} {value:.6g}" for name, value in values.items()))
    print("\nrows by their loss, each by itself and without dropout")
    history = BatchHistory(cfg, point.experiment.train_data)
    places = history.places(args.at)
    texts = history.texts(args.at)
    for row in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable"):
        print(f"{losses[row]:9.4f}  row {row}  {join_places(places[row])}")
        print(f"           {format_row(texts[row])}")
        for line in point.shown[row] if point.shown else ():
            print(f"           {line}")
    if output:
        if not math.isfinite(values["param_norm"]):
            raise ConfigError(
                f"--output: the state after step {args.at} is not finite; try --at={args.at - 1}."
            )
        replay.save(point, state, output)
        print(f"\n{output}: the checkpoint of step {args.at}")


def comparison(gaps: dict[int, float]) -> str:
    """Describes how loss and gradient norm compare with the run's records."""
    if not gaps:
        return "metrics.jsonl has no record of these steps to compare with"
    numbers = list(gaps)
    steps = f"step {numbers[0]}"
    if len(numbers) > 1:
        steps = f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"
    worst = max(gaps.values())
    if worst:
        return f"loss and grad_norm differ from the records of {steps} by up to {worst:.1e} of them"
    return f"loss and grad_norm equal the records of {steps} bit for bit"
