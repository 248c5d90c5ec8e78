"""Compares runs: their results, the fields in which configs differ, and their held-out curves."""

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


class ComparedRun(NamedTuple):
    """The config and the metrics of one workdir."""

    name: str
    cfg: ExperimentConfig
    tokenizer: str  # its hash
    history: list[metrics.Record]  # of metrics.jsonl
    held: list[metrics.Record]  # those of held-out data

    def values(self, metric: Metric) -> list[tuple[float, float]]:
        """Returns (step, value) of each evaluation in which the metric is finite."""
        points = []
        for record in self.held:
            value = record.get(metric.name, math.nan)
            if math.isfinite(value):
                points.append((float(record["step"]), value))
        return points


def run(args: argparse.Namespace) -> None:
    """Prints tables, and writes the chart to a file if one is named."""
    if args.output and len(args.runs) > page.COLORS:
        raise ConfigError(
            f"--output: draws at most {page.COLORS} runs, and there are {len(args.runs)}; compare"
            " fewer."
        )
    runs = []
    for folder in args.runs:
        runs.append(read(folder_of(folder), args.runs, allow_plugins=args.allow_plugins))
    metric, notes = choose(runs)
    results = summary(runs, metric)
    fields = differences(runs)
    for note in notes:
        notice(note)
    _print(results)
    if fields[1:]:
        _print(fields)
    else:
        print("no field of their configs differs")
    if args.output:
        draw(args.output, runs, metric, notes, results, fields)
        print(f"{args.output}: written")


def _print(rows: Rows) -> None:
    """Prints a table below the titles of its columns."""
    head, *body = rows
    print_table(head, body, right=range(1, len(head)))


def read(folder: Path, given: Sequence[str], *, allow_plugins: bool = False) -> ComparedRun:
    """Reads the workdir of a run, whether it has ended, is still going, or was killed.

    The run is named after its folder, unless another folder of `given` has the same name.
    """
    if not workdir.is_workdir(folder):
        raise ConfigError(
            f"{folder}: no run has written a config.json there; pass the --workdir of a run."
        )
    cfg = workdir.read_config(folder, allow_plugins=allow_plugins)
    history = metrics.read(folder / "metrics.jsonl")
    held = [record for record in history if record["split"] == "eval"]
    if not held:
        raise ConfigError(
            f"{folder}: metrics.jsonl has no evaluation yet; wait until the run has compiled and"
            " evaluated once."
        )
    name = folder.resolve().name
    names = [Path(other).expanduser().resolve().name for other in given]
    if names.count(name) != 1:
        name = addressed(str(folder))
    return ComparedRun(
        name, cfg, str(read_object(folder / "config.json").get("tokenizer")), history, held
    )


def choose(runs: Sequence[ComparedRun]) -> tuple[Metric | None, list[str]]:
    """Chooses the metric to compare runs by, None if they share none, and notes about it."""
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
    tokenizers = {run.tokenizer for run in runs}
    if len(tokenizers) > 1:
        note = "the tokenizers differ, and so what a token is."
        for other in common:
            if other.name == "bits_per_byte":
                metric = other
                note = (
                    "the tokenizers differ; compared by bits per byte, which do not depend on them."
                )
        notes.append(note)
    elif headlines != {metric.name}:
        notes.append(
            f"their headlines are {', '.join(sorted(headlines))}; compared by {metric.words}, which"
            " all have."
        )
    return metric, notes


def summary(runs: Sequence[ComparedRun], metric: Metric | None) -> Rows:
    """Tabulates the runs, below the titles of the columns."""
    titles = ["run", "steps", "tokens"]
    if metric:
        titles += [f"best held-out {metric.words}", "last"]
    rows = [[*titles, "tokens/s", "parameters"]]
    for run in runs:
        last = run.history[-1]["step"]
        steps = run.cfg.train.steps
        timed = [record for record in run.history if "tokens_per_second" in record]
        tokens = UNKNOWN
        speed = UNKNOWN
        if timed:
            tokens_per_step = timed[-1]["tokens_per_second"] * timed[-1]["step_seconds"]
            tokens = f"{last * round(tokens_per_step):,}"
            speeds = [record["tokens_per_second"] for record in timed]
            speed = f"{statistics.median(speeds):,.0f}"
        done = str(last) if last == steps else f"{last} of {steps}"
        row = [run.name, done, tokens]
        if metric:
            values = run.values(metric)
            trained = [value for value in values if value[0]] or values  # as train.best counts
            choose_best = max if metric.higher_is_better else min
            step, best = choose_best(trained, key=lambda value: value[1])
            row += [f"{metric.show(best)} after {step:g}", metric.show(values[-1][1])]
        shapes = parameter_shapes(build_model(run.cfg.model)).values()
        count = sum(math.prod(leaf.shape) for leaf in shapes)
        rows.append([*row, speed, f"{count:,}"])
    return rows


def differences(runs: Sequence[ComparedRun]) -> Rows:
    """Tabulates the fields in which resolved configs differ, below the titles of the columns."""
    configs = [flatten_dict(resume.plain(run.cfg), sep=".") for run in runs]
    rows = [["differs", *(run.name for run in runs)]]
    for name in sorted(set().union(*configs)):
        values = [repr(cfg[name]) if name in cfg else UNKNOWN for cfg in configs]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return rows


def draw(
    path: Path,
    runs: Sequence[ComparedRun],
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
        plot.compared(path, {run.name: run.values(metric) for run in runs}, metric)
        return
    figure = ""
    if metric:
        lines = []
        for i, run in enumerate(runs):
            lines.append(Line(run.name, run.values(metric), f"c{i}", dots=True))
        last = float(max(run.held[-1]["step"] for run in runs))
        figure = chart(f"held-out {metric.words}", lines, last, tall=True)
    sections = [
        ("Curves", figure),
        ("Runs", page.table(results[1:], results[0])),
        ("Fields that differ", page.table(fields[1:], fields[0], code=True)),
    ]
    write_file(path, page.page(", ".join(run.name for run in runs), notes, sections))
