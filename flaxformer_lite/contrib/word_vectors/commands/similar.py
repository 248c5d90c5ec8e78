"""The command `similar`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


@declare_command(
    "find the nearest neighbors of words or texts, and score word vectors",
    '--model runs/words --word king --analogy "paris france london"',
    "--model path/to/t5 --questions questions-words.txt --pairs wordsim353.tsv",
    '--model path/to/minilm --text "what falls from the sky?" --file sentences.txt',
    runs="flaxformer_lite.contrib.word_vectors.run_similar",
)
def similar(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Finds the nearest neighbors of words in a model's token table, and scores the table.

    --analogy "a b c" looks for d in "a is to b as c is to d", the nearest word to b - a + c: "paris
    france london" asks for the country of London. Neighbors are words of one token; a given word of
    several tokens is the mean of their vectors. --questions and --pairs compare the table with
    human judgements.

    --text finds the lines of --file that a sentence model, of whatever kind, finds most similar.
    """
    add = parser.add_argument
    add_shared(parser, "model")
    add(
        "--word",
        action="append",
        type=command_line.text,
        default=[],
        help="word whose neighbors to show; may be repeated",
    )
    add(
        "--analogy",
        action="append",
        type=command_line.text,
        default=[],
        metavar='"A B C"',
        help="three words of an analogy; may be repeated",
    )
    add_shared(parser, "text", help="text whose neighbors in --file to show; may be repeated")
    add_shared(parser, "file")
    add(
        "--questions",
        metavar="FILE",
        type=command_line.path,
        help="analogies: four words per line, in sections that begin with ': name'",
    )
    add(
        "--pairs",
        metavar="FILE",
        type=command_line.path,
        help="word pairs and their similarity, separated by tab or comma (wordsim353)",
    )
    add_shared(parser, "top_k", default=10)
