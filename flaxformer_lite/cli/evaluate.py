"""Metrics of a model on held-out data, beside a trivial baseline."""

import argparse
import json

from flaxformer_lite.cli.open_model import folder_of, notices
from flaxformer_lite.cli.predict import options_of, predicted, write_rows
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.objectives.task import Task
from flaxformer_lite.training.apply import open_file, open_trained


def run(args: argparse.Namespace) -> None:
    """Prints a table or a JSON object."""
    with notices():
        trained = open_trained(
            folder_of(args.model),
            dtype=args.dtype,
            family=args.family,
            allow_plugins=args.allow_plugins,
            **options_of(args),
        )
        data = open_file(trained, args.data)
        objective = data.objective
        if args.output and not isinstance(objective, Task):
            raise ConfigError(
                f"--output: {plugin_name(objective)} predicts tokens, not rows; leave it out."
            )
        metrics, predictions = trained.evaluate(data)
        baseline = objective.baseline(data)
    if args.output:
        write_rows(args.output, predicted(data, predictions))
    if args.json:
        known = {"baseline": dict([baseline])} if baseline else {}
        print(json.dumps({"examples": data.num_examples, **metrics, **known}))
        return
    shown = [metric for metric in objective.shown if metric.name in metrics]
    rows = [[metric.words, metric.show(metrics[metric.name]), ""] for metric in shown]
    if baseline and rows:
        rows[0][2] = shown[0].show(baseline[1])
    print(f"{args.data}: {data.num_examples:,} examples")
    print_table([plugin_name(objective), "model", baseline[0] if baseline else ""], rows, right=[1])
