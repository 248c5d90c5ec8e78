"""Prints plans, as text or JSON."""

import argparse
import json
import sys

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.read_page import read_page
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.plan import planner, report, topology
from flaxformer_lite.runs import mesh_checks


def run(args: argparse.Namespace) -> None:
    """Prints the plan. Exits with 1 if nothing fits."""
    machine = topology.parse(args.topology)
    cfg = read_page(args)
    if cfg.mesh.mode == "pmap":
        raise ConfigError(
            "mesh.mode='pmap': is compiled for devices at hand only; plan mesh.mode=shard_map, with"
            " the same numbers."
        )
    mesh_checks.check_mesh(cfg, machine.count * cfg.mesh.slices)
    plan = planner.make(cfg, machine, compiler=not args.analytic)
    if args.json:
        print(json.dumps(plan.json(), indent=2))
    else:
        _print(report.rows(plan))
    if not plan.fits:
        sys.exit(command_line.EXIT_FAILED)


def _print(rows: report.Rows) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
