"""Checks that a config computes the same on a mesh as on one device, by comparing all gradients of one step.

The devices are simulated on this CPU. The text is random words, the arithmetic float32, dropout is off and the
optimizer is plain gradient descent, so only the mesh differs. Give large configs fewer layers and rows with
--config.FIELD.
"""

import argparse
import os

from flaxformer_lite.cli import command_line

MOST = 512  # devices; each has its own threads
TAKES_CONFIG = True
EXAMPLES = """examples:
  flaxformer_lite verify-mesh --config=llama_tiny --config.mesh.fsdp=2 --config.mesh.tensor=2
  flaxformer_lite verify-mesh --config=t5_tiny --config.mesh.context=4 --devices=4 --all
  flaxformer_lite verify-mesh --config=bert_tiny --config.mesh.mode=pmap

Exits with 1 if a gradient differs by more than rounding. Also lists the large parameters that every device holds
whole, what the devices exchange, and exchanges that the design does not explain.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices",
        type=command_line.integer(1, MOST),
        default=8,
        help=f"simulated devices, at most {MOST} (default 8)",
    )
    parser.add_argument("--all", action="store_true", help="list every parameter, instead of the worst")


def run(args: argparse.Namespace) -> None:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flag}")  # before jax starts
    from flaxformer_lite.cli import _verify_mesh

    _verify_mesh.show(args)
