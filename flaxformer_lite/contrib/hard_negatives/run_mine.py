"""Mines hard negatives for rows of a query and its answer."""

import argparse

from flaxformer_lite.cli import retrieve
from flaxformer_lite.cli.open_model import print_notice, print_warnings
from flaxformer_lite.cli.predict import write_rows
from flaxformer_lite.contrib.hard_negatives.mining import MiningRules, mine
from flaxformer_lite.data.retrieval import read_pairs
from flaxformer_lite.files.read import Json


def run(args: argparse.Namespace) -> None:
    """Writes the rows with their negatives, and prints how many there are."""
    rules = MiningRules(
        negatives=args.negatives,
        range_min=args.range[0],
        range_max=args.range[1],
        relative_margin=args.relative_margin,
    )
    rows = find_negatives(args, rules)
    few = sum(len(row["negatives"]) < rules.negatives for row in rows)
    if few:
        print_notice(
            f"{few:,} of {len(rows):,} rows have fewer than {rules.negatives} negatives, as the"
            " range and the margin leave no more; --range looks at more candidates."
        )
    write_rows(args.output, rows)
    count = sum(len(row["negatives"]) for row in rows)
    print(f"{args.output}: {len(rows):,} rows, {count:,} negatives")


def find_negatives(args: argparse.Namespace, rules: MiningRules) -> list[Json]:
    """Returns the rows of the command's table, each with its `negatives`."""
    data = read_pairs(
        args.data, f"--data={args.data}", args.columns or "", documents=args.file or ""
    )
    names = sorted(data.corpus)
    number = {name: row for row, name in enumerate(names)}
    texts = {text: number[name] for name, text in data.corpus.items()}
    answers = []
    excluded = []
    for query, text in data.queries.items():
        rows = sorted(number[name] for name in data.relevant[query])
        answers.append(rows)
        excluded.append({*rows, texts.get(text, rows[0])})
    most = max(map(len, answers))
    depth = rules.last(most) + max(map(len, excluded))
    with print_warnings():
        layers, opened = retrieve.open_sentence_model(args)
        prompts = retrieve.prompts_of(args)
        hits, similar = retrieve.nearest_and_scores(opened, layers, data, depth, prompts, answers)
    chosen = mine(hits, similar, excluded, rules)
    made: list[Json] = []
    for text, rows, negatives in zip(data.queries.values(), answers, chosen, strict=True):
        listed = [data.corpus[names[negative]] for negative in negatives]
        for row in rows:
            made.append({"anchor": text, "positive": data.corpus[names[row]], "negatives": listed})
    return made
