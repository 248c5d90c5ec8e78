"""Writes any checkpoint as published weights: config.json, safetensors and tokenizer, which transformers reads too.

SRC is the --workdir of train (its newest checkpoint), a directory of Flax's old msgpack, or one of safetensors. DST must
not exist yet; it appears when it is whole.
"""

import argparse

from flaxformer_lite.cli import command_line

EXAMPLES = """examples:
  flaxformer_lite convert runs/gpt2 published/gpt2
  flaxformer_lite convert old/flax_bert published/bert --dtype bfloat16
  flaxformer_lite convert path/to/llama published/llama --shard_size 2GB
  flaxformer_lite convert path/to/bert published/bert_body --head none
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", type=command_line.path, help="what to read")
    parser.add_argument("dst", metavar="DST", type=command_line.path, help="directory to make")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the weights; else as they are")
    command_line.add_family(parser)
    parser.add_argument("--head", help="of the model, where it is not the one that config.json names")
    parser.add_argument(
        "--shard_size", default="5GB", help="most that one file holds, like 500MB (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _convert

    _convert.convert(
        args.src, args.dst, dtype=args.dtype, head=args.head, family=args.family, shard_size=args.shard_size
    )
