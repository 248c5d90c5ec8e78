"""Guesses the hidden word of a sentence: the likeliest tokens with their probabilities."""

import argparse

from flaxformer_lite.cli import command_line

EXAMPLES = """examples:
  flaxformer_lite fill-mask --model path/to/bert "The capital of [MASK] is Paris."
  flaxformer_lite fill-mask --model runs/bert "import [MASK]" --top_k 10

[MASK] stands for the model's own mask token, which may be written as well (<mask> for RoBERTa). Several are guessed one by
one, none knowing the others' guess.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        type=command_line.path,
        help="directory of an encoder with its masked-LM head, or its --workdir",
    )
    parser.add_argument("text", type=command_line.text, help="with [MASK] in it")
    parser.add_argument("--top_k", type=int, default=5, help="guesses to show (default: %(default)s)")
    command_line.add_family(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _fill_mask

    _fill_mask.show(args)
