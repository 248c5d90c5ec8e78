"""Compares runs: their results, the fields in which their configs differ, and their curves."""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flax.traverse_util import flatten_dict

from flaxformer_lite.cli.open_model import folder_of, print_notice
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, ExperimentConfig, plugin_name
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import read_object
from flaxformer_lite.model_folder import find_run_config
from flaxformer_lite.models import build_model
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.runs.report import metrics, page
from flaxformer_lite.runs.report.chart import Line, draw_chart
from flaxformer_lite.runs.start import resume
from flaxformer_lite.storage.stores import address_of

TEMPLATE = Path(__file__).with_name("compare.html")
UNKNOWN = "-"
TableRows = list[list[str]]  # the first row has the titles


class ComparedRun(NamedTuple):
    """The config and the metrics of one workdir."""

    name: str
    cfg: ExperimentConfig
    tokenizer: str  # hash of the tokenizer
    history: list[metrics.Record]  # the records of metrics.jsonl
    evaluations: list[metrics.Record]  # those of held-out data

    def values(self, metric: Metric) -> list[tuple[float, float]]:
        """Returns (step, value) of each evaluation in which the metric is finite."""
        points = []
        for record in self.evaluations:
            value = record.get(metric.name, math.nan)
            if math.isfinite(value):
                points.append((float(record["step"]), value))
        return points


def run(args: argparse.Namespace) -> None:
    """Prints tables, and writes the chart to a file if one is named."""
    if args.output and len(args.runs) > page.NUM_COLORS:
        raise ConfigError(
            f"--output: draws at most {page.NUM_COLORS} runs, and there are {len(args.runs)};"
            " compare fewer."
        )
    runs = []
    for folder in args.runs:
        runs.append(read(folder_of(folder), args.runs, allow_plugins=args.allow_plugins))
    metric, notes = choose(runs)
    results = summary(runs, metric)
    fields = differences(runs)
    for note in notes:
        print_notice(note)
    _print(results)
    if fields[1:]:
        _print(fields)
    else:
        print("no field of their configs differs")
    if args.output:
        draw(args.output, runs, metric, notes, results, fields)
        print(f"{args.output}: written")


def _print(rows: TableRows) -> None:
    """Prints a table below the titles of its columns."""
    head, *body = rows
    print_table(head, body, right=range(1, len(head)))


def read(folder: Path, given: Sequence[str], *, allow_plugins: bool = False) -> ComparedRun:
    """Reads the workdir of a run, whether it has ended, is still going, or was killed.

    The run is named after its folder, unless another folder of `given` has the same name.
    """
    cfg = find_run_config(folder, allow_plugins=allow_plugins)
    if cfg is None:
        raise ConfigError(
            f"{folder}: no run has written a config.json there; pass the --workdir of a run."
        )
    history = metrics.read(folder / "metrics.jsonl")
    evaluations = [record for record in history if record["split"] == "eval"]
    if not evaluations:
        raise ConfigError(
            f"{folder}: metrics.jsonl has no evaluation yet; wait until the run has compiled and"
            " evaluated once."
        )
    name = folder.resolve().name
    same_name = 0
    for other in given:
        same_name += Path(other).resolve().name == name
    if same_name != 1:
        name = address_of(folder) or str(folder)
    return ComparedRun(
        name, cfg, str(read_object(folder / "config.json").get("tokenizer")), history, evaluations
    )


def choose(runs: Sequence[ComparedRun]) -> tuple[Metric | None, list[str]]:
    """Chooses the metric to compare runs by, None if they share none, and notes about it."""
    common = []
    for metric in runs[0].cfg.objective.shown:
        if all(run.values(metric) for run in runs):
            common.append(metric)
    objectives = {plugin_name(run.cfg.objective) for run in runs}
    headlines = {run.cfg.objective.shown[0].name for run in runs}
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


def summary(runs: Sequence[ComparedRun], metric: Metric | None) -> TableRows:
    """Tabulates the runs, below the titles of the columns."""
    titles = ["run", "steps", "tokens"]
    if metric:
        titles += [f"best held-out {metric.words}", "last"]
    rows = [[*titles, "tokens/s", "parameters"]]
    for run in runs:
        last = run.history[-1]["step"]
        steps = run.cfg.train.steps
        done = f"{last} of {steps}"
        if last == steps:
            done = str(last)
        tokens, speed = _throughput(run)
        row = [run.name, done, tokens]
        if metric:
            values = run.values(metric)
            step, best = _best(values, metric)
            row += [f"{metric.show(best)} after {step:g}", metric.show(values[-1][1])]
        shapes = parameter_shapes(build_model(run.cfg.model)).values()
        count = sum(math.prod(leaf.shape) for leaf in shapes)
        rows.append([*row, speed, f"{count:,}"])
    return rows


def _throughput(run: ComparedRun) -> tuple[str, str]:
    """Returns the number of tokens that a run has seen, and its median speed, as texts."""
    timed = [record for record in run.history if "tokens_per_second" in record]
    if not timed:
        return UNKNOWN, UNKNOWN
    tokens_per_step = timed[-1]["tokens_per_second"] * timed[-1]["step_seconds"]
    tokens = run.history[-1]["step"] * round(tokens_per_step)
    speed = statistics.median(record["tokens_per_second"] for record in timed)
    return f"{tokens:,}", f"{speed:,.0f}"


def _best(values: list[tuple[float, float]], metric: Metric) -> tuple[float, float]:
    """Returns step and value of the best evaluation.

    As for `train.best`, the evaluation before the first step counts only if it is the only one.
    """
    trained = [value for value in values if value[0]] or values
    choose_best = min
    if metric.higher_is_better:
        choose_best = max
    return choose_best(trained, key=lambda value: value[1])


def differences(runs: Sequence[ComparedRun]) -> TableRows:
    """Tabulates the fields in which resolved configs differ, below the titles of the columns."""
    configs = [flatten_dict(resume.plain(run.cfg), sep=".") for run in runs]
    rows = [["differs", *(run.name for run in runs)]]
    for name in sorted(set().union(*configs)):
        values = []
        for cfg in configs:
            value = UNKNOWN
            if name in cfg:
                value = repr(cfg[name])
            values.append(value)
        if len(set(values)) > 1:
            rows.append([name, *values])
    return rows


def draw(
    path: Path,
    runs: Sequence[ComparedRun],
    metric: Metric | None,
    notes: Sequence[str],
    results: TableRows,
    fields: TableRows,
) -> None:
    """Writes the chart and the tables as a page of HTML."""
    figure = ""
    if metric:
        lines = []
        for i, run in enumerate(runs):
            lines.append(Line(run.name, run.values(metric), f"c{i}", dots=True))
        last = float(max(run.evaluations[-1]["step"] for run in runs))
        figure = draw_chart(f"held-out {metric.words}", lines, last, tall=True)
    template = page.make_environment().from_string(TEMPLATE.read_text(encoding="utf-8"))
    rendered = template.render(
        title=", ".join(run.name for run in runs),
        notes=notes,
        chart=figure,
        results=results,
        fields=fields,
    )
    write_file(path, rendered.encode(errors="replace"))  # ? for what UTF-8 cannot hold
