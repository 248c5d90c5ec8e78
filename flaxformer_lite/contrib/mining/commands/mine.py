"""The command `mine`: its flags."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.commands.declare import add_model, add_prompts, declare_command


@declare_command(
    "find hard negatives for rows of a query and its answer",
    "--model path/to/minilm --data pairs.jsonl --output mined.jsonl --relative_margin 0.05",
    "--model runs/search --data pairs.jsonl --output mined.jsonl --sampling random --range_max 50",
    runs="flaxformer_lite.contrib.mining.run_mine",
)
def mine(parser: argparse.ArgumentParser) -> None:
    """Finds hard negatives: documents that a model finds similar to a query and are not its answer.

    The documents are all answers and negatives of the table, and the lines of --corpus. The rows
    that it writes, with `anchor`, `positive` and the list `negatives`, train sentence_embeddings,
    sparse_embeddings and late_interaction. Ranges, scores and margins are those of
    sentence-transformers' mine_hard_negatives; with several answers of a query, margins are from
    the least similar.
    """
    add = parser.add_argument
    add_model(parser, "directory of a sentence model of any kind, or its --workdir")
    add("--data", required=True, type=command_line.data, help="table of queries and answers")
    add(
        "--output",
        required=True,
        metavar="FILE.jsonl",
        type=command_line.new_file(".jsonl"),
        help="file for the rows",
    )
    add(
        "--columns",
        type=command_line.text,
        metavar="ROLE=NAME,...",
        help="columns of the table: anchor, positive, negatives",
    )
    add("--corpus", type=command_line.path, help="file with further documents, one per line")
    add_prompts(parser)
    add(
        "--negatives",
        type=command_line.integer(1),
        default=3,
        help="negatives of a query (default: %(default)s)",
    )
    add(
        "--range_min",
        type=command_line.integer(0),
        default=0,
        help="candidates to leave out, the most similar first (default: %(default)s)",
    )
    add(
        "--range_max",
        type=command_line.integer(1),
        help="candidates to choose from (default: as many as are needed)",
    )
    add("--max_score", type=float, help="highest similarity of a negative")
    add("--min_score", type=float, help="lowest similarity of a negative")
    add(
        "--absolute_margin",
        type=float,
        help="a negative is less similar than the answer by at least this",
    )
    add(
        "--relative_margin",
        type=float,
        help="a negative is less similar than the answer by at least this share: 0.05 is 5%%",
    )
    add(
        "--sampling",
        choices=("top", "random"),
        default="top",
        help="which candidates to take (default: %(default)s)",
    )
    add("--seed", type=command_line.integer(0), default=0, help="of the random choice")
