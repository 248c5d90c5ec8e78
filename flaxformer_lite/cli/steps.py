"""Shows the rows of a step of a run, the steps that saw a document, and the losses of a step."""

import argparse
import math
import textwrap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from flaxformer_lite.cli.open_model import folder_of, print_notice
from flaxformer_lite.config import ConfigError
from flaxformer_lite.runs import batch_history, replay
from flaxformer_lite.runs.report import metrics

MAX_TEXT_CHARACTERS = 160  # most characters of a row's text without --all
MAX_SHOWN_PLACES = 4  # most places of a row without --all


def run(args: argparse.Namespace) -> None:
    """Prints the rows of a step, or the steps that saw a document."""
    if args.at is None and not args.document:
        raise ConfigError(
            "--at or --document is missing; pass the number of a step, or a document to look for."
        )
    if args.at is None and args.run:
        raise ConfigError("--run: takes a step again; name it with --at.")
    if args.output and not args.run:
        raise ConfigError("--output: is for the checkpoint of a step; add --run.")
    folder = folder_of(args.workdir)
    if args.run:
        _take_again(folder, args)
    elif args.at is not None:
        _show_rows(folder, args)
    if args.document:
        history = batch_history.open_history(folder, allow_plugins=args.allow_plugins)
        last = batch_history.last_step(folder, history.cfg)
        count = 0
        for step, row in history.saw(args.document, last):
            print(f"step {step}  row {row}", flush=True)
            count += 1
        print_notice(f"rows found in steps 1 to {last}: {count}.")


def _show_rows(folder: Path, args: argparse.Namespace) -> None:
    history = batch_history.open_history(folder, allow_plugins=args.allow_plugins)
    places = history.places(args.at)
    texts = history.texts(args.at)
    shown = metrics.read_collected(folder, (args.at,)).get(args.at, {}).get("shown", ())
    print(f"step {args.at} of {history.cfg.train.steps}: {len(texts)} rows")
    for number, text in enumerate(texts):
        print(f"row {number}  {join_places(places[number], full=args.all)}")
        print(f"    {format_row(text, full=args.all)}")
        for line in shown[number] if shown else ():
            print(f"    {line}")


def _take_again(folder: Path, args: argparse.Namespace) -> None:
    """Prints the metrics of a step that is taken again, and its rows by their loss."""
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
    print(describe_gaps(replay.compare(folder, {**point.values, args.at: values})))
    print("  ".join(f"{name} {value:.6g}" for name, value in values.items()))
    print("\nrows by their loss, each by itself and without dropout")
    history = batch_history.BatchHistory(cfg, point.experiment.train_data)
    places = history.places(args.at)
    texts = history.texts(args.at)
    for row in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable"):
        print(f"{losses[row]:9.4f}  row {row}  {join_places(places[row], full=args.all)}")
        print(f"           {format_row(texts[row], full=args.all)}")
        for line in point.shown[row] if point.shown else ():
            print(f"           {line}")
    if output:
        if not math.isfinite(values["param_norm"]):
            raise ConfigError(
                f"--output: the state after step {args.at} is not finite; try --at={args.at - 1}."
            )
        replay.save(point, state, output)
        print(f"\n{output}: the checkpoint of step {args.at}")


def describe_gaps(gaps: dict[int, float]) -> str:
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


def join_places(places: Iterable[str], *, full: bool = False) -> str:
    """Joins places in one line, only the first few unless `full`."""
    places = list(places)
    if full or len(places) <= MAX_SHOWN_PLACES:
        return ", ".join(places)
    return f"{', '.join(places[:MAX_SHOWN_PLACES])} and {len(places) - MAX_SHOWN_PLACES} more"


def format_row(text: str, *, full: bool = False) -> str:
    """Formats a row's text in one line, only its beginning unless `full`."""
    line = repr(text)[1:-1]
    return line if full else textwrap.shorten(line, MAX_TEXT_CHARACTERS, placeholder=" ...")
