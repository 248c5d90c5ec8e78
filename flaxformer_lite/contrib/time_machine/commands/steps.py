"""The command `steps`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import declare_command


@declare_command(
    "show the rows of a step of a run, and where they came from",
    "--workdir runs/gpt2 --at 1234",
    '--workdir runs/gpt2 --document "book.txt:1500"',
    '--workdir runs/gpt2 --document "It was a dark and stormy night"',
    runs="flaxformer_lite.contrib.time_machine.run_steps",
)
def steps(parser: argparse.ArgumentParser) -> None:
    """Shows the rows of a step, with the file and line of each, or the steps that saw a document.

    Batches are a function of the seed and the step, so this needs no log: only the workdir, and the
    data at the path that the run read.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add("--at", type=command_line.integer(1), metavar="STEP", help="step whose rows to print")
    add(
        "--document",
        type=command_line.text,
        metavar="X",
        help="FILE:LINE, as grep -n prints it, or the number of a document or of a table's row",
    )
    add(
        "--full",
        action="store_true",
        help="print rows in full, with every file and line they came from",
    )
