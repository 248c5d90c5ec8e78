"""The command `compare`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, declare_command


@declare_command(
    "compare runs: results, curves, and fields that differ",
    "runs/gpt2 runs/wide",
    "runs/* --output compare.html",
    runs="flaxformer_lite.contrib.compare.run_compare",
)
def compare(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Compares runs: steps, tokens, held-out metrics, speed, and the fields that differ.

    Runs that are still going, or were stopped or killed, are compared as far as they got.
    """
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=command_line.place,
        help="the --workdir of a run",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".html"),
        help="a .html for the held-out curves and the tables",
    )
