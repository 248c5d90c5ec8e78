"""Says what a directory holds: family, head, sizes, every tensor, and a checksum over names and contents."""

import argparse

from flaxformer_lite.cli import command_line

EXAMPLES = """examples:
  flaxformer_lite inspect path/to/bert
  flaxformer_lite inspect runs/gpt2 --all

Tensors have their published names, so a training workdir, its conversion to safetensors, and Flax's old msgpack of the
same model have the same checksum.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=command_line.path, help="published weights, Flax msgpack, or the --workdir of train"
    )
    command_line.add_family(parser)
    parser.add_argument(
        "--all", action="store_true", help="a line for each layer, instead of one for all that are alike"
    )


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _inspect

    _inspect.show(args.directory, every=args.all, family=args.family)
