"""Metrics of a model on held-out data, beside a trivial baseline."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flaxformer_lite.cli.open_model import folder_of, notices
from flaxformer_lite.cli.predict import check_output, options_of, predicted, write_rows
from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.objectives.task import Task
from flaxformer_lite.training.apply import open_file, open_trained


def run(args: argparse.Namespace) -> None:
    """Prints a table or a JSON object.

    Raises:
      ConfigError, WeightsError, CheckpointError: the model or the data cannot be used.
    """
    check_output(args.output)
    with notices():
        trained = open_trained(folder_of(args.model), dtype=args.dtype, family=args.family, **options_of(args))
        data = open_file(trained, args.data)
        objective = data.objective
        if args.output and not isinstance(objective, Task):
            raise ConfigError(f"--output: {plugin_name(objective)} predicts tokens, not rows; leave it out.")
        metrics, predictions = trained.evaluate(data)
        baseline = objective.baseline(data)
    if args.output:
        write_rows(Path(args.output), predicted(data, predictions))
    if args.json:
        known = {"baseline": dict([baseline])} if baseline else {}
        print(json.dumps({"examples": data.num_examples, **metrics, **known}))
        return
    table = Table(box=None, pad_edge=False, title=f"{args.data}: {data.num_examples:,} examples", title_justify="left")
    for title in (plugin_name(objective), "model", baseline[0] if baseline else ""):
        table.add_column(title, justify="right" if title == "model" else "left")
    shown = [metric for metric in objective.shown if metric.name in metrics]
    for metric in shown:
        beside = metric.show(baseline[1]) if baseline and metric is shown[0] else ""
        table.add_row(metric.words, metric.show(metrics[metric.name]), beside)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False).print(table)
