"""Commands that train, and that look at runs before, during and after."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


@declare_command(
    "train a model, or continue a run that was stopped",
    "--config=gpt2_tiny --workdir=runs/gpt2",
    "--config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt",
    "--config=gpt2_tiny --help",
    takes_config=True,
)
def train(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Trains a model; the same command continues a run that was stopped.

    --config.FIELD=VALUE overrides any field of the config. On a TPU pod, or under Slurm or OpenMPI,
    run the same command in every process; docs/clusters.md has the recipes.
    """
    add_shared(parser, "workdir")
    add = rarely.add_argument
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of process 0, if no cluster is detected",
    )
    add(
        "--num_processes",
        type=int,
        metavar="INT",
        help="number of processes; 1 trains alone, even inside a cluster",
    )
    add("--process_id", type=int, metavar="INT", help="number of this process, from 0")
    add(
        "--peer_timeout",
        type=command_line.integer(5),
        metavar="SECONDS",
        default=60,
        help="seconds until a process that does not answer counts as lost; all have five times as"
        " long to start (default: %(default)s)",
    )
    add(
        "--stopped_code",
        type=command_line.integer(0, 255),
        default=0,
        metavar="CODE",
        help="exit code, for schedulers, when SIGTERM or SIGHUP stopped the run and its state was"
        " saved (default: %(default)s)",
    )


@declare_command(
    "show the data of a config, or tokenize it beforehand",
    "stats --config=gpt2_tiny --config.data.path=my_text.txt",
    "show --config=bert_tiny --rows 2",
    'tokenize --config=llama_7b --config.data.path="web/*.zst"',
    takes_config=True,
)
def data(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Shows the data that a config trains on, or tokenizes it beforehand.

    stats prints sizes, lengths and the share of padding; show prints the first training rows as the
    model reads them, with the tokens that have a loss in «»; tokenize fills data.cache with all
    cores, together with other hosts that share the cache and run the same command.
    """
    parser.add_argument(
        "what", choices=("stats", "show", "tokenize"), metavar="{stats,show,tokenize}"
    )
    parser.add_argument(
        "--rows",
        type=command_line.integer(1, 1000),
        metavar="INT",
        default=3,
        help="number of rows to show (default: %(default)s)",
    )


@declare_command(
    "show the rows of a step of a run, or take it again",
    "--workdir runs/gpt2 --at 1234",
    '--workdir runs/gpt2 --document "book.txt:1500"',
    "--workdir runs/gpt2 --at 1234 --run",
)
def steps(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Shows the rows of a step, with the file and line of each, or the steps that saw a document.

    Batches are a function of the seed and the step, so this needs no log: only the workdir, and the
    data at the path that the run read.

    --run takes the step again from the nearest earlier checkpoint, and shows the rows by their
    loss. On the same devices the numbers equal those of the run bit for bit, which is checked
    against metrics.jsonl. The workdir is only read, so the run may continue meanwhile.
    """
    add = parser.add_argument
    add_shared(parser, "workdir", required=True)
    add("--at", type=command_line.integer(1), metavar="STEP", help="step whose rows to show")
    add(
        "--document",
        type=command_line.text,
        metavar="FILE:LINE",
        help="line as grep -n prints it, or the number of a document or of a table's row",
    )
    add(
        "--all",
        action="store_true",
        help="print rows in full, with every file and line they came from",
    )
    add("--run", action="store_true", help="take the step again, and show the loss of each row")
    rarely.add_argument(
        "--output",
        type=command_line.new_folder,
        metavar="DIR",
        help="with --run, new workdir for a checkpoint of that step",
    )
