"""The run's report.html: curves, texts, times, memory, config and environment in one file."""

import html
import itertools
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict

from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.objectives.sums import LOAD
from flaxformer_lite.objectives.tables.breakdown import cell_text
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.report.chart import Line, Points, chart, number
from flaxformer_lite.runs.report.clock import Clock, words
from flaxformer_lite.runs.report.metrics import LATEST, Record, Recorder, middles
from flaxformer_lite.runs.report.page import beside, folded, page, table, texts
from flaxformer_lite.runs.report.usage import usage
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runtime import invocation

# step_seconds would repeat tokens_per_second
UNDRAWN = re.compile(f"step|split|step_seconds|seconds_.*|peak_.*|{LOAD}.*")
EVALUATIONS = 100  # most evaluations in the page
SAMPLES = 24  # most samples
LETTERS = 2000  # most characters of a text
OPEN = 30  # most rows of a table of scores; longer ones are folded


class RunPage:
    """Writes report.html from what the run records.

    Args:
      requested: the config before the run resolved it.
      about: the rows of the run's banner.
    """

    def __init__(
        self,
        workdir: Path,
        cfg: ExperimentConfig,
        requested: ExperimentConfig,
        about: text.Rows,
        recorder: Recorder,
        clock: Clock,
    ):
        self._path = workdir / "report.html"
        self._about = about
        self._recorder = recorder
        self._metrics = cfg.objective.shown
        self._config = config(cfg, requested)
        self._clock = clock

    def write(self, state: str, result: text.Rows, baseline: tuple[str, float] | None) -> None:
        """Replaces the report.

        Args:
          state: the progress of the run.
          result: the rows of the closing summary.
          baseline: the name and value of the headline's baseline.
        """
        history = self._recorder.history
        evals = self._recorder.of("eval")
        results = [row for row in result if row[0] != "report"]  # this page
        times = [("whole time", words(self._clock.read())), *usage(history)]
        about = beside([("Result", table(results)), ("Run", table(self._about))])
        machine = beside([("Time and memory", table(times)), ("Environment", table(environment()))])
        sections = [
            ("", about),
            ("Scores", scores(self._recorder.breakdown)),
            ("Curves", curves(history, self._metrics, baseline)),
            ("Experts", experts(history)),
            ("Texts", samples(self._recorder.samples)),
            ("Evaluations", folded(f"figures of {len(evals)} evaluations", evaluations(evals))),
            ("Config", self._config),
            ("", machine),
        ]
        written = f"{state}; written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}"
        write_file(self._path, page(self._path.parent.resolve().name, [written], sections))


def curves(
    history: list[Record], metrics: Sequence[Metric], baseline: tuple[str, float] | None
) -> str:
    """Draws every figure of the records over steps, the objective's headline first and large."""
    known = {"loss": Metric("loss", "loss with all its terms")}
    known |= {metric.name: metric for metric in reversed(metrics)}
    names = [metric.name for metric in metrics]
    for record in history:
        names += record
    # By their lines, as the loss of many objectives is their headline metric, too.
    charts: dict[tuple[Line, ...], str] = {}
    for name in dict.fromkeys(names):
        if UNDRAWN.fullmatch(name):
            continue
        lines = _lines(history, name)
        metric = known.get(name, Metric(name))
        is_first = not charts
        title = metric.words
        if metric.unit:
            title += f" ({metric.unit})"
        level = None
        if is_first:
            level = baseline
        last = float(history[-1]["step"])
        drawn = chart(title, lines, last, level=level, tall=is_first)
        charts.setdefault(lines, drawn)
    return f'<div class="grid-of">{"".join(charts.values())}</div>'


def experts(history: list[Record]) -> str:
    """Tabulates the latest load of each expert, a row a layer, as shares of the layer's mean."""
    latest: Record = {}
    for record in history:
        if any(map(is_load, record)):
            latest = record
    rows: dict[str, dict[str, str]] = {}
    for name, value in latest.items():
        if not is_load(name):
            continue
        layer, _, expert = name.removeprefix(LOAD).rpartition("/")
        row = rows.setdefault(layer.replace("/", " ").replace("_", " "), {})
        row[expert] = f"{value:.2f}"
    if not rows:
        return ""
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows.values())))
    cells = []
    for layer, row in rows.items():
        cells.append([layer, *(row.get(name, "") for name in names)])
    when = f"up to step {latest['step']}"
    heading = f"<p>tokens of each expert, 1 is the mean of its layer; {when}</p>"
    return heading + table(cells, ["layer", *names])


def is_load(name: str) -> bool:
    return name.startswith(LOAD)


def _lines(history: list[Record], name: str) -> tuple[Line, Line]:
    """Returns the training and held-out lines of a figure."""
    train = [record for record in history if record["split"] == "train" and name in record]
    evals = [record for record in history if record["split"] == "eval" and name in record]
    train_steps = middles(train)
    if name in LATEST:
        train_steps = [float(record["step"]) for record in train]
    eval_steps = [float(record["step"]) for record in evals]
    return (
        Line("training", _points(train_steps, train, name), "train"),
        Line("held out", _points(eval_steps, evals, name), "c0", dots=True),
    )


def _points(steps: list[float], records: list[Record], name: str) -> Points:
    return tuple(zip(steps, (record[name] for record in records), strict=True))


def samples(recorded: list[Record]) -> str:
    """Renders the model's texts, the newest first and open."""
    parts: list[str] = []
    for sample in spread(recorded, SAMPLES)[::-1]:
        when = f"after step {sample['step']}"
        shortened = []
        for title, written in sample["texts"]:
            if len(written) > LETTERS:
                written = f"{written[:LETTERS]} ..."
            shortened.append((title, written))
        content = texts(shortened)
        if parts:
            parts.append(folded(when, content))
        else:
            parts.append(f"<p>{when}</p>{content}")
    return "".join(parts)


def scores(recorded: Record) -> str:
    """Shows the tables of the last evaluation, such as the scores per class."""
    if not recorded:
        return ""
    parts = []
    for title, head, rows in recorded["tables"]:
        cells = [list(map(cell_text, row)) for row in rows]
        shown = "<p>none</p>"
        if cells:
            shown = table(cells, head)
        if len(cells) > OPEN:
            content = folded(f"{title} ({len(cells)})", shown)
        else:
            content = f"<h3>{html.escape(title)}</h3>{shown}"
        parts.append(f"<section>{content}</section>")
    when = f"<p>of held-out examples, after step {recorded['step']}</p>"
    return f'{when}<div class="flow">{"".join(parts)}</div>'


def evaluations(held: list[Record]) -> str:
    """Tabulates the figures of evaluations."""
    names: list[str] = []
    for record in held:
        for name in record:
            if name not in names and not UNDRAWN.fullmatch(name):
                names.append(name)
    rows = []
    for record in spread(held, EVALUATIONS):
        row = [str(record["step"])]
        for name in names:
            cell = ""
            if name in record:
                cell = number(record[name])
            row.append(cell)
        rows.append(row)
    return table(rows, ["step", *(name.replace("_", " ") for name in names)])


def config(cfg: ExperimentConfig, requested: ExperimentConfig) -> str:
    """Tabulates the resolved config, after the fields that the command line or the run changed."""
    resolved = flatten_dict(resume.plain(cfg), sep=".")
    before = flatten_dict(resume.plain(requested), sep=".")
    given = invocation.fields_given(invocation.underscored(sys.argv))
    changed = []
    for name, value in resolved.items():
        if before.get(name) != value:
            changed.append([name, repr(value), f"the run; was {before.get(name)!r}"])
        elif name in given:
            changed.append([name, repr(value), "command line"])
    changes = table(changed, ["in place of the page's", "value", "set by"], code=True)
    rows = [(name, repr(value)) for name, value in resolved.items()]
    fields = table(rows, marked=[row[0] for row in changed], code=True)
    return changes + folded(f"all {len(resolved)} fields", fields)


def environment() -> text.Rows:
    """Returns the command, the system and the versions of libraries."""
    devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    rows = [
        ("command", text.command()),
        ("devices", f"{jax.device_count()} x {devices} ({jax.default_backend()})"),
        ("processes", str(jax.process_count())),
        ("system", platform.platform()),
        *resume.versions().items(),
    ]
    return [row for row in rows if row[1]]


def spread(records: list[Record], most: int) -> list[Record]:
    """Returns at most `most` records, evenly spread, with the first and the last."""
    count = len(records)
    if count <= most:
        return records
    return [records[round(i * (count - 1) / (most - 1))] for i in range(most)]
