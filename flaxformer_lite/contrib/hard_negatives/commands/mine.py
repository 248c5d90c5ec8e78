"""The command `mine`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command


def _range(value: str) -> tuple[int, int | None]:
    first, colon, last = value.partition(":")
    if not colon or not first.isdecimal() or not (last.isdecimal() or not last):
        raise argparse.ArgumentTypeError(f"{value[:40]!r}: must be two numbers, such as 10:50")
    if last and int(last) <= int(first):
        raise argparse.ArgumentTypeError(f"{value[:40]}: must end after it begins, as 10:50 does")
    return int(first), int(last) if last else None


@declare_command(
    "find hard negatives for rows of a query and its answer",
    "--model path/to/minilm --data pairs.jsonl --output mined.jsonl --relative_margin 0.05",
    "--model runs/search --data pairs.jsonl --output mined.jsonl --range 10:50",
    runs="flaxformer_lite.contrib.hard_negatives.run_mine",
)
def mine(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Finds hard negatives: documents that a model finds similar to a query and are not its answer.

    The documents are all answers and negatives of the table, and the lines of --file. The rows
    that it writes, with `anchor`, `positive` and the list `negatives`, train sentence_embeddings,
    sparse_embeddings and late_interaction. Ranges, scores and margins are those of
    sentence-transformers' mine_hard_negatives; with several answers of a query, margins are from
    the least similar.
    """
    add = parser.add_argument
    add_shared(parser, "model", "data")
    add(
        "--output",
        required=True,
        metavar="FILE.jsonl",
        type=command_line.new_file(".jsonl"),
        help="file for the rows",
    )
    add_shared(parser, "columns", help="columns of the table: anchor, positive, negatives")
    add_shared(parser, "file", help="further documents, one per line")
    add(
        "--negatives",
        type=command_line.integer(1),
        metavar="INT",
        default=3,
        help="negatives of a query (default: %(default)s)",
    )
    add(
        "--range",
        type=_range,
        metavar="FROM:TO",
        default=(0, None),
        help="candidates to choose from, the most similar first, such as 10:50, which leaves out"
        " the first ten (default: as many as are needed)",
    )
    add(
        "--relative_margin",
        type=float,
        metavar="FLOAT",
        help="a negative is less similar than the answer by at least this share: 0.05 is 5%%",
    )
    add_shared(rarely, "query_prompt", "document_prompt")
