"""Commands that train, and that look at runs before, during and after."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import declare_command


@declare_command(
    "train a model, or continue a run that was stopped",
    "--config=gpt2_tiny --workdir=runs/gpt2",
    "--config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt",
    "--config=gpt2_tiny --help",
    takes_config=True,
)
def train(parser: argparse.ArgumentParser) -> None:
    """Trains a model; the same command continues a run that was stopped.

    --config.FIELD=VALUE overrides any field of the config. On a TPU pod, or under Slurm or OpenMPI,
    run the same command in every process; docs/clusters.md has the recipes.
    """
    add = parser.add_argument
    add(
        "--workdir",
        type=command_line.place,
        help="folder, or gs:// or s3:// address, for everything the run writes",
    )
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of process 0, if no cluster is detected",
    )
    add(
        "--num_processes",
        type=int,
        help="number of processes; 1 trains alone, even inside a cluster",
    )
    add("--process_id", type=int, help="number of this process, from 0")
    add(
        "--start_timeout",
        type=command_line.integer(1),
        default=300,
        help="seconds to wait for all processes to start (default: %(default)s)",
    )
    add(
        "--peer_timeout",
        type=command_line.integer(5),
        default=60,
        help="seconds until a process that does not answer counts as lost (default: %(default)s)",
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
def data(parser: argparse.ArgumentParser) -> None:
    """Shows the data that a config trains on, or tokenizes it beforehand.

    stats prints sizes, lengths and the share of padding; show prints the first training rows as the
    model reads them, with the tokens that have a loss in «»; tokenize fills data.cache with all
    cores, together with other hosts that share the cache and run the same command.
    """
    add = parser.add_argument
    add("what", choices=("stats", "show", "tokenize"))
    add(
        "--rows",
        type=command_line.integer(1, 1000),
        default=3,
        help="number of rows to show (default: %(default)s)",
    )
    add(
        "--seed",
        type=command_line.integer(0),
        help="random seed for order and masking (default: config.seed)",
    )
