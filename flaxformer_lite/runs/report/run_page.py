"""The run's report.html: curves, texts, times, memory, config and environment in one file."""

import functools
import itertools
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict

from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.objectives.sums import LOAD
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.report.chart import Line, draw_chart
from flaxformer_lite.runs.report.clock import Clock, describe_time
from flaxformer_lite.runs.report.metrics import LATEST, Record, Recorder, interval_middles
from flaxformer_lite.runs.report.page import format_number, render_page
from flaxformer_lite.runs.report.usage import usage_rows
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runtime import invocation

# step_seconds would repeat tokens_per_second
UNDRAWN = re.compile(f"step|split|step_seconds|seconds_.*|peak_.*|{LOAD}.*")
MAX_EVALUATIONS = 100  # most evaluations in the page
MAX_SAMPLES = 24  # most samples
MAX_TEXT_CHARACTERS = 2000  # most characters of a text
MAX_OPEN_ROWS = 30  # most rows of a table of scores; longer ones are folded
Table = list[list[str]]  # the first row has the titles


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
        self._fields = flatten_dict(resume.plain(cfg), sep=".")
        self._requested = flatten_dict(resume.plain(requested), sep=".")
        self._clock = clock

    def draw_headline(
        self, baseline: tuple[str, float] | None, best: tuple[str, int] | None = None
    ) -> str:
        """Returns a page with the curve of the headline alone, for a notebook."""
        charts = curves(self._recorder.history, self._metrics[:1], baseline, best)
        name = self._path.parent.resolve().name
        return render_page("curve.html", title=name, chart=charts[0]).decode()

    def write(
        self,
        state: str,
        result: text.Rows,
        baseline: tuple[str, float] | None,
        best: tuple[str, int] | None = None,
    ) -> None:
        """Replaces the report.

        Args:
          state: the progress of the run.
          result: the rows of the closing summary.
          baseline: the name and value of the headline's baseline.
          best: the name and step of a mark in the headline's curve.
        """
        history = self._recorder.history
        evals = self._recorder.of("eval")
        rendered = render_page(
            "report.html",
            title=self._path.parent.resolve().name,
            state=f"{state}; written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}",
            result=[row for row in result if row[0] != "report"],  # this page
            about=self._about,
            scores=self._recorder.breakdown,
            most_open=MAX_OPEN_ROWS,
            charts=curves(history, self._metrics, baseline, best),
            samples=spread(self._recorder.samples, MAX_SAMPLES)[::-1],
            letters=MAX_TEXT_CHARACTERS,
            num_evaluations=len(evals),
            evaluations=evaluations(spread(evals, MAX_EVALUATIONS)),
            fields=[(name, repr(value)) for name, value in self._fields.items()],
            changed=changes(self._fields, self._requested),
            times=[("whole time", describe_time(self._clock.read())), *usage_rows(history)],
            environment=environment(),
        )
        write_file(self._path, rendered)


def curves(
    history: list[Record],
    metrics: Sequence[Metric],
    baseline: tuple[str, float] | None,
    best: tuple[str, int] | None,
) -> list[str]:
    """Draws every figure of the records over steps, the objective's headline first and large.

    A run that ended before its first record has none.
    """
    if not history:
        return []
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
        title = metric.words
        if metric.unit:
            title += f" ({metric.unit})"
        draw = functools.partial(draw_chart, title, lines, float(history[-1]["step"]))
        if not charts:
            charts[lines] = draw(level=baseline, mark=best, tall=True)
        elif lines not in charts:
            charts[lines] = draw()
    return list(charts.values())


def _lines(history: list[Record], name: str) -> tuple[Line, Line]:
    """Returns the training and held-out lines of a figure."""
    train = [record for record in history if record["split"] == "train" and name in record]
    evals = [record for record in history if record["split"] == "eval" and name in record]
    train_steps = interval_middles(train)
    if name in LATEST:
        train_steps = [float(record["step"]) for record in train]
    train_points = zip(train_steps, (record[name] for record in train), strict=True)
    eval_points = tuple((float(record["step"]), record[name]) for record in evals)
    return (
        Line("training", tuple(train_points), "train"),
        Line("held out", eval_points, "c0", dots=True),
    )


def evaluations(evals: list[Record]) -> Table:
    """Tabulates the figures of evaluations."""
    names = []
    for name in dict.fromkeys(itertools.chain.from_iterable(evals)):
        if not UNDRAWN.fullmatch(name):
            names.append(name)
    rows = [["step", *(name.replace("_", " ") for name in names)]]
    for record in evals:
        row = [str(record["step"])]
        for name in names:
            cell = ""
            if name in record:
                cell = format_number(record[name])
            row.append(cell)
        rows.append(row)
    return rows


def changes(fields: Mapping[str, object], requested: Mapping[str, object]) -> Table:
    """Tabulates the fields that the command line or the run changed, and which of them did."""
    given = invocation.fields_given(invocation.underscored(sys.argv))
    rows = []
    for name, value in fields.items():
        if requested.get(name) != value:
            rows.append([name, repr(value), f"the run; was {requested.get(name)!r}"])
        elif name in given:
            rows.append([name, repr(value), "command line"])
    return rows


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
