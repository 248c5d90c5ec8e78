"""The run's report.html: curves, texts, times, memory, config and environment, in one file without
any other."""

import html
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
from flaxformer_lite.objectives.tables.breakdown import cell_text
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.report.chart import Line, chart, number
from flaxformer_lite.runs.report.clock import Clock, words
from flaxformer_lite.runs.report.metrics import LATEST, Record, Recorder, middles
from flaxformer_lite.runs.report.page import beside, folded, page, table, texts
from flaxformer_lite.runs.report.usage import usage
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runtime import invocation

# step_seconds is tokens_per_second again
UNDRAWN = re.compile("step|split|step_seconds|seconds_.*|peak_.*")
EVALUATIONS = 100  # most of them in the page, and most characters of a text
SAMPLES = 24
LETTERS = 2000
OPEN = 30  # rows of a table of scores; longer ones are folded


class RunPage:
    """Writes report.html from what the run records.

    Args:
      asked: the config as the run was given it.
      about: what the banner says of the run.
    """

    def __init__(
        self,
        workdir: Path,
        cfg: ExperimentConfig,
        asked: ExperimentConfig,
        about: text.Rows,
        recorder: Recorder,
        clock: Clock,
    ):
        self._path = workdir / "report.html"
        self._about = about
        self._recorder = recorder
        self._metrics = cfg.objective.shown
        self._config = config(cfg, asked)
        self._clock = clock

    def write(self, state: str, result: text.Rows, baseline: tuple[str, float] | None) -> None:
        """Writes the report anew; `state` says where the run is, `result` and `baseline` are those
        of the summary."""
        history = self._recorder.history
        held = self._recorder.of("eval")
        shown = [row for row in result if row[0] != "report"]  # this page
        times = [("whole time", words(self._clock.read())), *usage(history)]
        sections = [
            ("", beside([("Result", table(shown)), ("Run", table(self._about))])),
            ("Scores", scores(self._recorder.breakdown)),
            ("Curves", curves(history, self._metrics, baseline)),
            ("Texts", samples(self._recorder.samples)),
            ("Evaluations", folded(f"figures of {len(held)} evaluations", evaluations(held))),
            ("Config", self._config),
            (
                "",
                beside([("Time and memory", table(times)), ("Environment", table(environment()))]),
            ),
        ]
        written = f"{state}; written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}"
        write_file(self._path, page(self._path.parent.resolve().name, [written], sections))


def curves(
    history: list[Record], metrics: Sequence[Metric], baseline: tuple[str, float] | None
) -> str:
    """Draws every figure of the records over steps, the objective's headline first and large."""
    known = {
        metric.name: metric
        for metric in [*metrics, Metric("loss", "loss with all its terms")][::-1]
    }
    names = dict.fromkeys(
        [*(metric.name for metric in metrics), *(name for record in history for name in record)]
    )
    # by what is drawn, as the loss of many runs is their headline again
    drawn: dict[tuple[Line, ...], str] = {}
    for name in (name for name in names if not UNDRAWN.fullmatch(name)):
        train, held = (
            [r for r in history if r["split"] == split and name in r] for split in ("train", "eval")
        )
        steps = [float(record["step"]) for record in train] if name in LATEST else middles(train)
        lines = (
            Line(
                "training",
                tuple((step, r[name]) for step, r in zip(steps, train, strict=True)),
                "train",
            ),
            Line("held out", tuple((float(r["step"]), r[name]) for r in held), "c0", dots=True),
        )
        metric = known.get(name, Metric(name))
        is_first = not drawn
        title = metric.words + (f" ({metric.unit})" if metric.unit else "")
        level = baseline if is_first else None
        last = float(history[-1]["step"])
        drawn.setdefault(lines, chart(title, lines, last, level=level, tall=is_first))
    return f'<div class="grid-of">{"".join(drawn.values())}</div>'


def samples(recorded: list[Record]) -> str:
    """Shows what the model wrote, the newest first and open."""
    parts: list[str] = []
    for sample in spread(recorded, SAMPLES)[::-1]:
        when = f"after step {sample['step']}"
        shown = texts(
            (title, said[:LETTERS] + " ..." * (len(said) > LETTERS))
            for title, said in sample["texts"]
        )
        parts.append(folded(when, shown) if parts else f"<p>{when}</p>{shown}")
    return "".join(parts)


def scores(recorded: Record) -> str:
    """Shows the tables of the last evaluation, such as the scores per class."""
    if not recorded:
        return ""
    parts = []
    for title, head, rows in recorded["tables"]:
        cells = [[cell_text(cell) for cell in row] for row in rows]
        shown = table(cells, head) if cells else "<p>none</p>"
        is_long = len(cells) > OPEN
        heading = f"<h3>{html.escape(title)}</h3>"
        content = folded(f"{title} ({len(cells)})", shown) if is_long else heading + shown
        parts.append(f"<section>{content}</section>")
    when = f"<p>of held-out examples, after step {recorded['step']}</p>"
    return f'{when}<div class="flow">{"".join(parts)}</div>'


def evaluations(held: list[Record]) -> str:
    """Tabulates the figures of evaluations."""
    names = [
        name
        for name in dict.fromkeys(name for record in held for name in record)
        if not UNDRAWN.fullmatch(name)
    ]
    rows = [
        [str(r["step"]), *(number(r[n]) if n in r else "" for n in names)]
        for r in spread(held, EVALUATIONS)
    ]
    return table(rows, ["step", *(name.replace("_", " ") for name in names)])


def config(cfg: ExperimentConfig, asked: ExperimentConfig) -> str:
    """Tabulates the resolved config, and before it what the command line or the run itself has set
    in place of the page."""
    resolved, before = (flatten_dict(resume.plain(one), sep=".") for one in (cfg, asked))
    given = invocation.fields_given(invocation.underscored(sys.argv))
    changed = []
    for name, value in resolved.items():
        if before.get(name) != value:
            changed.append([name, repr(value), f"the run; was {before.get(name)!r}"])
        elif name in given:
            changed.append([name, repr(value), "command line"])
    own = table(changed, ["in place of the page's", "value", "set by"], code=True)
    rows = [(name, repr(value)) for name, value in resolved.items()]
    whole = table(rows, marked=[row[0] for row in changed], code=True)
    return own + folded(f"all {len(resolved)} fields", whole)


def environment() -> text.Rows:
    """Lists the command, the system and the versions of what computes."""
    devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    rows = [
        ("command", text.command()),
        ("devices", f"{jax.device_count()} x {devices} ({jax.default_backend()})"),
    ]
    rows += [
        ("processes", str(jax.process_count())),
        ("system", platform.platform()),
        *resume.versions().items(),
    ]
    return [row for row in rows if row[1]]


def spread(records: list[Record], most: int) -> list[Record]:
    """Returns at most so many records, evenly spread, the first and the last among them."""
    count = len(records)
    return (
        records
        if count <= most
        else [records[round(i * (count - 1) / (most - 1))] for i in range(most)]
    )
