"""Runs beside each other: their results, the fields in which their configs differ, and their
held-out curves in one chart."""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flax.traverse_util import flatten_dict

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli.open_model import folder_of, notice
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, ExperimentConfig, plugin_name
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import read_object
from flaxformer_lite.models import build_model
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.runs.report import metrics, page, plot
from flaxformer_lite.runs.report.chart import Line, chart
from flaxformer_lite.runs.start import resume
from flaxformer_lite.storage.stores import addressed

UNKNOWN = "-"
Rows = list[list[str]]


class Run(NamedTuple):
    """A workdir's config and records."""

    name: str
    cfg: ExperimentConfig
    tokenizer: str  # its hash
    history: list[metrics.Record]
    held: list[metrics.Record]

    def values(self, metric: Metric) -> list[tuple[float, float]]:
        return [
            (float(r["step"]), r[metric.name])
            for r in self.held
            if math.isfinite(r.get(metric.name, math.nan))
        ]


def run(args: argparse.Namespace) -> None:
    """Prints tables, and writes the chart to a file if one is named."""
    if args.output and len(args.runs) > page.COLORS:
        raise ConfigError(
            f"--output: draws at most {page.COLORS} runs, and there are {len(args.runs)}; compare"
            " fewer."
        )
    runs = [
        read(folder_of(folder), args.runs, allow_plugins=args.allow_plugins) for folder in args.runs
    ]
    metric, notes = choose(runs)
    results = summary(runs, metric)
    fields = differences(runs)
    for note in notes:
        notice(note)
    for head, *rows in (results, fields) if fields[1:] else (results,):
        print_table(head, rows, right=range(1, len(head)))
    if not fields[1:]:
        print("no field of their configs differs")
    if args.output:
        draw(args.output, runs, metric, notes, results, fields)
        print(f"{args.output}: written")


def read(folder: Path, given: Sequence[str], *, allow_plugins: bool = False) -> Run:
    """Reads a workdir, whole or as a kill has left it; it is named after its folder if no other has
    the same name."""
    if not workdir.is_workdir(folder):
        raise ConfigError(
            f"{folder}: no run has written a config.json there; pass the --workdir of a run."
        )
    cfg = workdir.read_config(folder, allow_plugins=allow_plugins)
    history = metrics.read(folder / "metrics.jsonl")
    held = [record for record in history if record["split"] == "eval"]
    if not held:
        raise ConfigError(
            f"{folder}: metrics.jsonl has no evaluation yet; a run begins with one, once compiled."
        )
    own = folder.resolve().name
    name = (
        own
        if [Path(other).expanduser().resolve().name for other in given].count(own) == 1
        else addressed(str(folder))
    )
    return Run(name, cfg, str(read_object(folder / "config.json").get("tokenizer")), history, held)


def choose(runs: Sequence[Run]) -> tuple[Metric | None, list[str]]:
    """Returns the metric to compare runs by, if they have one in common, and what a reader must
    know of it."""
    shown = runs[0].cfg.objective.shown
    common = [metric for metric in shown if all(run.values(metric) for run in runs)]
    objectives = {plugin_name(run.cfg.objective) for run in runs}
    headlines = {run.cfg.objective.headline.name for run in runs}
    notes = []
    if len(objectives) > 1:
        notes.append(
            f"the runs train different objectives ({', '.join(sorted(objectives))}), whose values"
            " measure different things."
        )
    if not common:
        return None, [*notes, "they have no metric in common, so none is compared."]
    metric = common[0]
    if len({run.tokenizer for run in runs}) > 1:
        per_byte = [metric for metric in common if metric.name == "bits_per_byte"]
        metric = (per_byte or common)[0]
        way = (
            "; compared by bits per byte, which do not depend on them"
            if per_byte
            else ", and so what a token is"
        )
        notes.append(f"the tokenizers differ{way}.")
    elif headlines != {metric.name}:
        notes.append(
            f"their headlines are {', '.join(sorted(headlines))}; compared by {metric.words}, which"
            " all have."
        )
    return metric, notes


def summary(runs: Sequence[Run], metric: Metric | None) -> Rows:
    """Tabulates the runs, below the titles of the columns."""
    label = f"held-out {metric.words}" if metric else ""
    rows = [
        [
            "run",
            "steps",
            "tokens",
            *([f"best {label}", "last"] if metric else []),
            "tokens/s",
            "parameters",
        ]
    ]
    for one in runs:
        speeds = [
            (r["tokens_per_second"], r["step_seconds"])
            for r in one.history
            if "tokens_per_second" in r
        ]
        last = one.history[-1]["step"]
        of = one.cfg.train.steps
        row = [one.name, str(last) if last == of else f"{last} of {of}"]
        row.append(f"{last * round(math.prod(speeds[-1])):,}" if speeds else UNKNOWN)
        if metric:
            values = one.values(metric)
            trained = [value for value in values if value[0]] or values  # as train.best counts
            step, best = (max if metric.higher_is_better else min)(
                trained, key=lambda value: value[1]
            )
            row += [f"{metric.show(best)} after {step:g}", metric.show(values[-1][1])]
        row.append(f"{statistics.median(speed for speed, _ in speeds):,.0f}" if speeds else UNKNOWN)
        count = sum(
            math.prod(leaf.shape) for leaf in parameter_shapes(build_model(one.cfg.model)).values()
        )
        rows.append([*row, f"{count:,}"])
    return rows


def differences(runs: Sequence[Run]) -> Rows:
    """Tabulates the fields of the resolved configs that are not equal in all runs, below the titles
    of the columns."""
    configs = [flatten_dict(resume.plain(one.cfg), sep=".") for one in runs]
    names = sorted(set().union(*configs))
    rows = [
        [name, *(repr(cfg[name]) if name in cfg else UNKNOWN for cfg in configs)] for name in names
    ]
    return [
        ["differs", *(one.name for one in runs)],
        *(row for row in rows if len(set(row[1:])) > 1),
    ]


def draw(
    path: Path,
    runs: Sequence[Run],
    metric: Metric | None,
    notes: Sequence[str],
    results: Rows,
    fields: Rows,
) -> None:
    """Writes the chart as a PNG, or with the tables as a page of HTML."""
    if path.suffix == ".png":
        if metric is None:
            raise ConfigError(
                f"--output={path}: there is no metric to draw; name a .html for the tables alone."
            )
        plot.compared(path, {one.name: one.values(metric) for one in runs}, metric)
        return
    lines = (
        [Line(one.name, one.values(metric), f"c{i}", dots=True) for i, one in enumerate(runs)]
        if metric
        else []
    )
    last = float(max(one.held[-1]["step"] for one in runs))
    figure = chart(f"held-out {metric.words}", lines, last, tall=True) if metric else ""
    sections = [
        ("Curves", figure),
        ("Runs", page.table(results[1:], results[0])),
        ("Fields that differ", page.table(fields[1:], fields[0], code=True)),
    ]
    write_file(path, page.page(", ".join(one.name for one in runs), notes, sections))
