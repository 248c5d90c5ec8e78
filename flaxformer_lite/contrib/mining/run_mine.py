"""Mines hard negatives for rows of a query and its answer."""

import argparse

from flaxformer_lite.cli import retrieve
from flaxformer_lite.cli.open_model import print_notice, print_warnings
from flaxformer_lite.cli.predict import write_rows
from flaxformer_lite.contrib.mining.negatives import MiningRules, mine
from flaxformer_lite.data.retrieval import read_pairs


def run(args: argparse.Namespace) -> None:
    """Writes the rows with their negatives."""
    rules = MiningRules(
        negatives=args.negatives,
        range_min=args.range_min,
        range_max=args.range_max,
        max_score=args.max_score,
        min_score=args.min_score,
        absolute_margin=args.absolute_margin,
        relative_margin=args.relative_margin,
        sampling=args.sampling,
    )
    data = read_pairs(
        args.data, f"--data={args.data}", args.columns or "", documents=args.corpus or ""
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
    chosen = mine(hits, similar, excluded, rules, seed=args.seed)
    made = []
    counts = []
    for text, rows, negatives in zip(data.queries.values(), answers, chosen, strict=True):
        for row in rows:
            listed = [data.corpus[names[negative]] for negative in negatives]
            made.append({"anchor": text, "positive": data.corpus[names[row]], "negatives": listed})
            counts.append(len(listed))
    few = sum(count < rules.negatives for count in counts)
    if few:
        print_notice(
            f"{few:,} of {len(made):,} rows have fewer than {rules.negatives} negatives, as the"
            " ranges, scores and margins leave no more; --range_max looks at more candidates."
        )
    write_rows(args.output, made)
    print(f"{args.output}: {len(made):,} rows, {sum(counts):,} negatives")
