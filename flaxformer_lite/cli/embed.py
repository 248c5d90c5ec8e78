"""Makes a vector of each text: the mean of the encoder's last hidden states, of length one.

Prints how alike the texts are (cosine similarity); with --out writes the vectors as a .npy file.
"""

import argparse

from flaxformer_lite.cli import command_line

EXAMPLES = """examples:
  flaxformer_lite embed --model path/to/minilm --text "A cat sleeps." --text "A kitten naps." --text "Stocks fell."
  flaxformer_lite embed --model path/to/minilm --file sentences.txt --out vectors.npy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_help = "directory of an encoder's published weights, or its --workdir"
    parser.add_argument("--model", required=True, type=command_line.path, help=model_help)
    parser.add_argument(
        "--text", action="append", type=command_line.text, default=[], help="may be given several times"
    )
    parser.add_argument("--file", type=command_line.path, help="one text a line; - is stdin")
    parser.add_argument(
        "--out", metavar="FILE.npy", type=command_line.path, help="where the vectors go, float32 [texts, width]"
    )
    command_line.add_family(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.cli import _embed

    _embed.show(args)
