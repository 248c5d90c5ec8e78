"""The rows that a step of a run saw, and the steps that saw a document."""

import argparse
import textwrap
from collections.abc import Iterable

from flaxformer_lite.cli.open_model import folder_of, notice
from flaxformer_lite.config import ConfigError
from flaxformer_lite.runs import batch_history

SHORT = 160  # characters of a row's text, and places of its pieces, that are shown without --full
FEW = 4


def run(args: argparse.Namespace) -> None:
    """Prints the rows."""
    if args.at is None and not args.document:
        raise ConfigError(
            "--at or --document is missing: the number of a step, or what to look for."
        )
    folder = folder_of(args.workdir)
    opened = batch_history.open_history(folder, allow_plugins=args.allow_plugins)
    if args.at is not None:
        places = opened.places(args.at)
        texts = opened.texts(args.at)
        print(f"step {args.at} of {opened.cfg.train.steps}: {len(texts)} rows")
        for number, (own, text) in enumerate(zip(places, texts, strict=True)):
            print(f"row {number}  {listed(own, full=args.full)}\n    {shown(text, full=args.full)}")
    if args.document:
        last = batch_history.last_step(folder, opened.cfg)
        count = 0
        for step, row in opened.saw(args.document, last):
            print(f"step {step}  row {row}", flush=True)
            count += 1
        notice(f"rows found in steps 1 to {last}: {count}.")


def listed(places: Iterable[str], *, full: bool = False) -> str:
    """Returns places for one line, the first few of many."""
    places = list(places)
    more = f" and {len(places) - FEW} more" if len(places) > FEW and not full else ""
    return ", ".join(places if full else places[:FEW]) + more


def shown(text: str, *, full: bool = False) -> str:
    """Returns a row's text for one line, its beginning if it is long."""
    return (
        repr(text)[1:-1] if full else textwrap.shorten(repr(text)[1:-1], SHORT, placeholder=" ...")
    )
