"""The command `look`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


@declare_command(
    "show what a model computes on one text, as a page",
    '--model path/to/gpt2 --text "To be, or not to be" --output gpt2.html',
    '--model path/to/t5 --text "translate English to German: I" --output t5.html',
    runs="flaxformer_lite.contrib.look.run_look",
)
def look(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Shows what a model computes on one text, as a page for any browser.

    The page shows attention, logit lens, losses, hidden states, positions and masks, and needs no
    network.
    """
    add_shared(parser, "model")
    parser.add_argument(
        "--text", required=True, type=command_line.text, help="text that the model reads"
    )
    parser.add_argument(
        "--target",
        type=command_line.text,
        metavar="TEXT",
        help="text that the decoder reads: the answer of an encoder-decoder (default: the model's"
        " own), or the continuation of a decoder-only model's text",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        type=command_line.new_file(".html"),
        help="page to write, .html",
    )
    add_shared(
        rarely,
        "length",
        default=64,
        help="maximum tokens of the text and of the target (default: %(default)s)",
    )
