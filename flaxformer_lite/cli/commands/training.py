"""Commands that train, and that look at runs before, during and after."""

import argparse
import os
from collections.abc import Mapping

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import declare_command

MOST_DEVICES = 512  # simulated devices; each starts its own threads


def _made_up_devices(args: argparse.Namespace) -> Mapping[str, str]:
    if not args.config:
        return {}
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


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
    "show the rows of a step of a run, and where they came from",
    "--workdir runs/gpt2 --at 1234",
    '--workdir runs/gpt2 --document "book.txt:1500"',
    '--workdir runs/gpt2 --document "It was a dark and stormy night"',
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


@declare_command(
    "repeat a step of a run, and show the loss of each of its rows",
    "--workdir runs/gpt2 --at 1234",
    "--workdir runs/gpt2 --at 1234 --output runs/gpt2_1234",
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


@declare_command(
    "verify that a model computes what it should",
    "--model path/to/minilm",
    "--model runs/gpt2 --checks padding,packing,cache",
    "--config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2",
    "--config=t5_tiny --config.mesh.context=4 --devices=4 --checks mesh --all",
    takes_config=True,
    environment=_made_up_devices,
)
def verify(parser: argparse.ArgumentParser) -> None:
    """Verifies that a model has the properties that a model should have.

    No token sees the future, padding, a text beside it or another packed document; a cache, a
    batch, accumulated microbatches and a scanned stack change nothing; what is saved is loaded; few
    bits and bfloat16 err as expected. The texts are random ids, the arithmetic float32, and dropout
    is off. Exits with 1 if a property fails; `as published` are those that the published model
    lacks, too.

    With --config, also compares all gradients of one step on a mesh of devices that are simulated
    on this CPU with those of one device, and lists large parameters that are replicated, what the
    devices exchange, and exchanges that the design does not explain. Give large configs fewer
    layers and rows with --config.FIELD.
    """
    add = parser.add_argument
    add(
        "--model",
        type=command_line.model,
        help="the --workdir of train, or published weights, in place of a --config",
    )
    command_line.add_family(parser)
    add(
        "--checks",
        type=command_line.text,
        default="",
        metavar="NAME,...",
        help="causal, window, padding, packing, cache, generate, accumulation, scan, saving,"
        " quantized, bfloat16 or mesh (default: all)",
    )
    add(
        "--reference",
        type=command_line.path,
        metavar="DIR",
        help="inputs.npz and outputs.npz of another program, as tools/reference_outputs.py writes"
        " them",
    )
    add("--seed", type=command_line.integer(0), default=0, help="seed of the texts")
    add(
        "--devices",
        type=command_line.integer(1, MOST_DEVICES),
        default=8,
        help="number of simulated devices (default: %(default)s)",
    )
    add(
        "--all",
        action="store_true",
        help="list every parameter of the mesh, instead of the worst",
    )
