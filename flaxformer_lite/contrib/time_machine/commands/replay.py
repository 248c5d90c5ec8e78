"""The command `replay`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import declare_command


@declare_command(
    "repeat a step of a run, and show the loss of each of its rows",
    "--workdir runs/gpt2 --at 1234",
    "--workdir runs/gpt2 --at 1234 --output runs/gpt2_1234",
    runs="flaxformer_lite.contrib.time_machine.run_replay",
)
def replay(parser: argparse.ArgumentParser) -> None:
    """Repeats a step of a run from the nearest earlier checkpoint, and prints the loss of each row.

    On the same devices the numbers equal those of the run bit for bit, which is checked against
    metrics.jsonl. The workdir is only read, so the run may continue meanwhile.
    """
    add = parser.add_argument
    add("--workdir", required=True, type=command_line.place, help="the --workdir of train")
    add(
        "--at",
        required=True,
        type=command_line.integer(1),
        metavar="STEP",
        help="step to repeat",
    )
    add(
        "--output",
        type=command_line.new_folder,
        metavar="DIR",
        help="new workdir for a checkpoint of that step",
    )
