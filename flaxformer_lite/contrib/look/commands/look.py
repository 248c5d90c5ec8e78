"""The command `look`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import add_adapter, add_model, declare_command


@declare_command(
    "show what a model computes on one text, as a page",
    '--model path/to/gpt2 --text "To be, or not to be" --output gpt2.html',
    '--model path/to/t5 --text "translate English to German: I" --output t5.html',
    runs="flaxformer_lite.contrib.look.run_look",
)
def look(parser: argparse.ArgumentParser) -> None:
    """Shows what a model computes on one text, as a page for any browser.

    The page shows attention, logit lens, losses, hidden states, positions and masks, and needs no
    network.
    """
    add = parser.add_argument
    add_model(parser, "directory of published weights, or the --workdir of train")
    add_adapter(parser)
    add("--text", required=True, type=command_line.text, help="text that the model reads")
    add(
        "--target",
        type=command_line.text,
        help="text that the decoder reads: the answer of an encoder-decoder (default: the model's"
        " own), or the continuation of a decoder-only model's text",
    )
    add(
        "--output",
        required=True,
        metavar="FILE",
        type=command_line.new_file(".html"),
        help="page to write, .html",
    )
    add(
        "--max_tokens",
        type=command_line.integer(1),
        default=64,
        help="maximum length of the text and of the target (default: %(default)s)",
    )
    add(
        "--top_k",
        type=command_line.integer(1),
        default=5,
        help="tokens that the logit lens shows at each position (default: %(default)s)",
    )
    add(
        "--prefix_lm",
        action="store_true",
        help="attend to the text in both directions, as the prefix_lm objective trains decoders",
    )
