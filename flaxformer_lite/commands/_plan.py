"""The plan of a config on the terminal, or as JSON."""

import argparse
import json
import sys

from flaxformer_lite import cli
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.plan import making, report, topology


def show(args: argparse.Namespace) -> None:
    """Prints the plan. Exits with 1 where nothing fits."""
    machine = topology.parse(args.topology)
    cfg = from_config_dict(ExperimentConfig, cli.config(args.overrides))
    plan = making.make(cfg, machine, compiler=not args.analytic)
    if args.json:
        print(json.dumps(plan.json(), indent=2))
    else:
        _print(report.rows(plan))
    if not plan.fits:
        sys.exit(cli.FAILED)


def _print(rows: report.Rows) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
