"""The summary of a run: the rows that end it, and report.html."""

import functools
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.checkpoints.workdir import write_baseline
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runs.best import Selection
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.report import clock, text, usage
from flaxformer_lite.runs.report.reporting import Reporting
from flaxformer_lite.runs.report.run_page import RunPage
from flaxformer_lite.runtime.progress import in_notebook, show_frame


class Summary(Callback):
    """Writes report.html after each evaluation, and prints the closing rows.

    Args:
      page: writes report.html; None in all processes but the first.
      workdir: the address of the run, as it is shown.
      start: number of steps already done.
    """

    def __init__(
        self,
        experiment: Experiment,
        selection: Selection,
        page: RunPage | None,
        workdir: Path,
        start: int,
        reporting: Reporting,
    ):
        self._experiment = experiment
        self._selection = selection
        self._page = page
        self._workdir = workdir
        self._done = start
        self._reporting = reporting

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        self._done = step

    def evaluated(self, step: int, record: Json) -> None:
        self.write_page()

    def write_page(self, state: str = "running") -> None:
        """Writes report.html.

        Args:
          state: the progress of the run.
        """
        if self._page is None:
            return
        with self._reporting.optional("report.html"):
            where = f"{state}: step {self._done} of {self._experiment.cfg.train.steps}"
            self._page.write(where, self._rows(), self._baseline, self._best())

    def print_closing(self) -> None:
        """Prints the results, the model's last texts, and what to do next."""
        cfg = self._experiment.cfg
        terminal = self._reporting.terminal
        terminal.rows("result", self._rows())
        if self._page is not None and in_notebook():
            with self._reporting.optional("the curve"):
                show_frame(self._page.draw_headline(self._baseline, self._best()), height=430)
        samples = self._reporting.recorder.samples
        if samples:
            texts = samples[-1]["texts"]
            if isinstance(cfg.objective, Task):
                terminal.rows("written", texts, copied=True)
            else:
                terminal.sample(texts)
        commands = text.next_commands(cfg, self._workdir)
        if commands:  # there are none of word vectors trained from Python
            terminal.rows("next", commands, copied=True)

    def _best(self) -> tuple[str, int] | None:
        """Returns the name and step of the mark of the best evaluation."""
        step = self._selection.best.step
        if not step:
            return None
        return f"best by {self._selection.metric.words}, after {step} steps", step

    @functools.cached_property
    def _baseline(self) -> tuple[str, float] | None:
        objective = self._experiment.cfg.objective
        fitted = objective.fit_baseline(self._experiment.eval_data)
        held_out = objective.baseline(self._experiment.eval_data, fitted)
        write_baseline(self._reporting.recorder.folder, fitted, held_out)
        return held_out

    def _rows(self) -> text.Rows:
        reporting = self._reporting
        if not reporting.recorder.of("eval"):
            return []
        cfg = self._experiment.cfg
        used = [("time", clock.describe_time(reporting.clock.read())), usage.peak()]
        return text.closing(
            reporting.recorder,
            cfg.objective.shown,
            self._baseline,
            reporting.compiles.count,
            self._workdir,
            self._selection.words,
            used,
            trackers=cfg.train.trackers,
        )
