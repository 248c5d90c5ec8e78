"""Attacks the package with hostile inputs of eleven classes; counts those whose end is not clear.

    python -m tools.opponent --seed=1 --show
    python -m tools.opponent --classes="config values" --fraction=0.1
    python -m tools.opponent --root=../another-checkout

An input ends clearly if it works and is right, or if one readable sentence of the package refuses
it within a limit of time. A traceback, a foreign exception, a hang, a crash, a message of control
characters, and a wrong or lost file do not.
"""

import argparse
import collections
import importlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.opponent.case import Case
from tools.opponent.workers import Result, run_all

# Class -> the file of this folder with its `cases(folder, rng)`, and how many of them --fraction=1
# tries; 0 is all.
CLASSES = {
    "config values": ("config_values", 1000),
    "config files": ("config_files", 200),
    "data files": ("data_files", 150),
    "tables": ("tables", 150),
    "weight headers": ("weight_headers", 150),
    "JSON": ("json_files", 250),
    "tokenizers": ("tokenizers", 100),
    "templates": ("templates", 60),
    "workdirs": ("workdirs", 100),
    "signals": ("signals", 24),
    "publishers": ("publishers", 24),
}
PROCESSES = ("signals", "publishers")  # start a process each


def main(argv: Sequence[str] | None = None) -> list[Result]:
    """Runs the chosen cases and prints the table; returns those that are not clear."""
    parser = argparse.ArgumentParser(
        "python -m tools.opponent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="share of each class's usual number"
    )
    parser.add_argument("--classes", default=",".join(CLASSES), help="comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parents[2], help="the checkout to attack"
    )
    parser.add_argument("--show", action="store_true", help="list what is not clear")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(args.root.resolve()))
    os.environ["PYTHONPATH"] = str(args.root.resolve())  # of the processes that cases start
    os.environ["JAX_PLATFORMS"] = "cpu"
    package = Path(importlib.import_module("flaxformer_lite").__file__).parent
    tried = collections.Counter()
    bad = []
    with tempfile.TemporaryDirectory(prefix="opponent") as folder:
        cases = [
            case for kind in args.classes.split(",") for case in chosen(kind, Path(folder), args)
        ]
        began = time.monotonic()
        for result in run_all(cases, package, Path(folder), args.jobs):
            tried[result.case.kind] += 1
            if result.why:
                bad.append(result)
    _print(tried, bad, args.show, time.monotonic() - began)
    return bad


def chosen(kind: str, folder: Path, args: argparse.Namespace) -> list[Case]:
    """Returns the cases of one class, a sample that depends on the seed only."""
    file, usual = CLASSES[kind]
    rng = random.Random(f"{args.seed} {kind}")
    (folder / file).mkdir()
    count = round(usual * args.fraction)
    cases = importlib.import_module(f"tools.opponent.{file}").cases(kind, folder / file, rng, count)
    return rng.sample(cases, min(count, len(cases)))


def _print(tried: collections.Counter, bad: list[Result], show: bool, seconds: float) -> None:
    failed = collections.Counter(result.case.kind for result in bad)
    print(f"{'class':<16} {'tried':>6} {'clear':>6} {'not clear':>10}")
    for kind in tried:
        print(f"{kind:<16} {tried[kind]:>6,} {tried[kind] - failed[kind]:>6,} {failed[kind]:>10,}")
    print(
        f"{'all':<16} {tried.total():>6,} {tried.total() - len(bad):>6,} {len(bad):>10,}  "
        f" {seconds:.0f} s"
    )
    for result in bad if show else ():
        print(f"\n[{result.case.kind}] {result.case.label}\n    {result.why}")


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
