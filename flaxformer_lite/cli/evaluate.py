"""Metrics of a model on held-out data, beside a trivial baseline."""

import argparse
import json

import numpy as np

from flaxformer_lite.cli import retrieve
from flaxformer_lite.cli.open_model import folder_of, print_warnings
from flaxformer_lite.cli.predict import options_of
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.data.retrieval import is_beir
from flaxformer_lite.files.read import Json, quote_name
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.tables.breakdown import Breakdown, cell_text
from flaxformer_lite.runs.evaluate_file import open_file, open_trained

MAX_TABLE_ROWS = 30  # most rows of a table on the terminal


def run(args: argparse.Namespace) -> None:
    """Prints a table or a JSON object."""
    searches = args.retrieval or is_beir(args.data) or retrieve.searches_only(args.model)
    if searches:
        retrieve.evaluate(args)
        return
    if args.query_prompt is not None or args.document_prompt is not None:
        raise ConfigError(
            "--query_prompt, --document_prompt: are for retrieval; add --retrieval, or leave them"
            " out."
        )
    with print_warnings():
        trained = open_trained(
            folder_of(args.model),
            dtype=args.dtype,
            allow_plugins=args.allow_plugins,
            **options_of(args),
        )
        data = open_file(trained, args.data)
        objective = data.objective
        metrics, predictions = trained.evaluate(data)
        baseline = trained.baseline(data)
    breakdown = objective.breakdown(predictions, np.arange(data.num_examples), data)
    if args.json:
        result: Json = {"examples": data.num_examples, **metrics}
        if baseline:
            result["baseline"] = dict([baseline])
        if breakdown:
            result["breakdown"] = {}
            for table in breakdown:
                rows_by_name = [dict(zip(table.head, row, strict=True)) for row in table.rows]
                result["breakdown"][table.title] = rows_by_name
        print(json.dumps(result))
        return
    known_metrics = [metric for metric in objective.shown if metric.name in metrics]
    rows = []
    for metric in known_metrics:
        rows.append([metric.words, metric.show(metrics[metric.name]), ""])
    name_of_baseline = ""
    if baseline:
        name_of_baseline = baseline[0]
    if baseline and rows:
        rows[0][2] = known_metrics[0].show(baseline[1])
    print(f"{args.data}: {data.num_examples:,} examples")
    titles = [plugin_name(objective), "model", name_of_baseline]
    print_table(titles, rows, right=[1])
    is_fitted = type(objective).fit_baseline is not Objective.fit_baseline
    if baseline is None and trained.fitted is None and is_fitted:
        print(
            "no baseline: it is fitted to training rows, and only the workdir of a run that this"
            " version trained has them"
        )
    for table in breakdown:
        show(table)


def show(table: Breakdown) -> None:
    """Prints a table, at most MAX_TABLE_ROWS of it."""
    rows = []
    for row in table.rows[:MAX_TABLE_ROWS]:
        rows.append([quote_name(cell_text(cell)) for cell in row])
    if not rows:
        return
    print(f"\n{table.title}")
    numbers = [i for i, cell in enumerate(table.rows[0]) if not isinstance(cell, str)]
    print_table(table.head, rows, right=numbers)
    if len(table.rows) > MAX_TABLE_ROWS:
        print(f"... {len(table.rows) - MAX_TABLE_ROWS} more; --json has all")
