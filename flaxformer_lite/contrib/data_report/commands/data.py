"""The command `data`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import declare_command


@declare_command(
    "show the data of a config, or tokenize it beforehand",
    "stats --config=gpt2_tiny --config.data.path=my_text.txt",
    "show --config=bert_tiny --rows 2",
    'tokenize --config=llama_7b --config.data.path="web/*.zst"',
    takes_config=True,
    runs="flaxformer_lite.contrib.data_report.run_data",
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
