"""The command `verify`: its flags."""

import argparse
import os
from collections.abc import Mapping

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command

MOST_DEVICES = 512  # simulated devices; each starts its own threads


def _made_up_devices(args: argparse.Namespace) -> Mapping[str, str]:
    if not args.config:
        return {}
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


@declare_command(
    "verify that a model computes what it should",
    "--model path/to/minilm",
    "--model runs/gpt2 --checks padding,packing,cache",
    "--config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2",
    "--config=t5_tiny --config.mesh.context=4 --devices=4 --checks mesh --all",
    takes_config=True,
    environment=_made_up_devices,
    runs="flaxformer_lite.contrib.verify.run_verify",
)
def verify(parser: argparse.ArgumentParser, rarely: Flags) -> None:
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
    add_shared(parser, "model", required=False)
    add(
        "--checks",
        type=command_line.text,
        default="",
        metavar="NAME,...",
        help="causal, window, padding, packing, cache, generate, accumulation, scan, saving,"
        " quantized, bfloat16 or mesh (default: all)",
    )
    rarely.add_argument(
        "--reference",
        type=command_line.path,
        metavar="DIR",
        help="inputs.npz and outputs.npz of another program, as tools/reference_outputs.py writes"
        " them",
    )
    add(
        "--devices",
        type=command_line.integer(1, MOST_DEVICES),
        metavar="INT",
        default=8,
        help="number of simulated devices (default: %(default)s)",
    )
    add(
        "--all",
        action="store_true",
        help="list every parameter of the mesh, instead of the worst",
    )
