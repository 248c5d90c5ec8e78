"""Prints the rows of a step, and the steps that saw a document."""

import argparse
import textwrap
from collections.abc import Iterable

from flaxformer_lite.cli.open_model import folder_of, print_notice
from flaxformer_lite.config import ConfigError
from flaxformer_lite.runs import batch_history
from flaxformer_lite.runs.report import metrics

MAX_TEXT_CHARACTERS = 160  # most characters of a row's text without --full
MAX_SHOWN_PLACES = 4  # most places of a row without --full


def run(args: argparse.Namespace) -> None:
    """Prints the rows of a step, or the steps that saw a document."""
    if args.at is None and not args.document:
        raise ConfigError(
            "--at or --document is missing; pass the number of a step, or a document to look for."
        )
    folder = folder_of(args.workdir)
    history = batch_history.open_history(folder, allow_plugins=args.allow_plugins)
    if args.at is not None:
        places = history.places(args.at)
        texts = history.texts(args.at)
        shown = metrics.read_collected(folder, (args.at,)).get(args.at, {}).get("shown", ())
        print(f"step {args.at} of {history.cfg.train.steps}: {len(texts)} rows")
        for number, text in enumerate(texts):
            print(f"row {number}  {join_places(places[number], full=args.full)}")
            print(f"    {format_row(text, full=args.full)}")
            for line in shown[number] if shown else ():
                print(f"    {line}")
    if args.document:
        last = batch_history.last_step(folder, history.cfg)
        count = 0
        for step, row in history.saw(args.document, last):
            print(f"step {step}  row {row}", flush=True)
            count += 1
        print_notice(f"rows found in steps 1 to {last}: {count}.")


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
