"""The loop over steps."""

import collections
import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from flaxformer_lite.analysis import recompiles
from flaxformer_lite.checkpoints.manager import Checkpoints, first_line
from flaxformer_lite.checkpoints.workdir import write_baseline
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs import packing
from flaxformer_lite.runs.best import Selection
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.report import clock, text, usage
from flaxformer_lite.runs.report.meter import Meter
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runs.report.run_page import RunPage
from flaxformer_lite.runs.report.sample import sample, writes
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runs.start.preflight import RunError
from flaxformer_lite.runs.start.setup import Experiment
from flaxformer_lite.runs.watchers.watcher import Watcher
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.average import evaluated_params
from flaxformer_lite.training.evaluate import WRITTEN, evaluate, show
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Params

AHEAD = 2  # steps dispatched before the host reads a result, so that neither waits for the other


class Saving(NamedTuple):
    """Where a run keeps its states, and the parameters of its best evaluation."""

    checkpoints: Checkpoints
    selection: Selection


class Reporting(NamedTuple):
    """The outputs of a run: records, terminal, report.

    Attributes:
      recorder: writes metrics.jsonl and samples.jsonl.
      terminal: prints.
      page: writes report.html; None in all processes but the first.
      meter: measures throughput and where time goes.
      workdir: the address of the run, as it is shown.
    """

    recorder: Recorder
    terminal: Terminal
    page: RunPage | None
    meter: Meter
    workdir: Path


class Trainer:
    """The loop over steps, with metrics, evaluation and checkpoints.

    Attributes:
      done: the number of steps whose results are known.
    """

    def __init__(
        self,
        experiment: Experiment,
        saving: Saving,
        reporting: Reporting,
        watchers: Sequence[Watcher] = (),
        group: Processes = ALONE,
    ):
        self._experiment = experiment
        self._checkpoints, self._selection = saving
        self._recorder = reporting.recorder
        self._terminal = reporting.terminal
        self._page = reporting.page
        self._meter = reporting.meter
        self._workdir = reporting.workdir
        self._watchers = watchers
        self._group = group
        self.done = 0
        self._failed = set[str]()
        self._in_flight: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self._compiles = recompiles.RecompileCounter()
        self._during = self._meter.clock.during

    def train(self, state: TrainState, start: int, interrupt: Interrupt) -> str:
        """Runs the steps start + 1 .. train.steps, or until train.patience is used up.

        Returns:
          The signal that ended the steps early, or "".
        """
        train = self._experiment.cfg.train
        train_step = self._experiment.program.train_step
        selection = self._selection
        steps = range(start + 1, train.steps + 1)
        if selection.stalled:
            steps = range(0)
        evaluated = self._group.coordinate(
            "records", len(self._recorder.of("eval")), lambda counts: counts[0]
        )
        settled = set[int]()
        for watcher in self._watchers:
            settled |= set(watcher.settled_after)
        step = start
        with (
            self._terminal.training(start),
            contextlib.closing(self._experiment.train_batches(start)) as placed,
            contextlib.ExitStack() as stepping,
        ):
            self.done = start
            self._meter.clock.turn_to("steps")
            if start == 0 or not evaluated:
                self._evaluate(state, start)
            batches = self._meter.waiting(placed)
            for step in steps:
                is_first = step == start + 1
                batch = next(batches, None)
                if batch is None:
                    raise RunError(
                        f"data ended at step {step} of {train.steps}; was a file truncated during"
                        " the run?"
                    )
                for watcher in self._watchers:
                    watcher.step_begins(step)
                packed = packing.shape_of(batch)
                with (
                    self._during("compile" if is_first else "steps"),
                    self._compiles.allow_first(f"a step packed in {packed}"),
                ):
                    state, metrics = train_step(state, batch)
                if is_first:  # until the step is compiled there is nothing to save
                    stepping.enter_context(interrupt.training(start, self._group))
                self._in_flight.append((step, metrics))
                self._settle(0 if step in settled else AHEAD)
                if step == start + 2:
                    self._compiles.start()
                if self._is_due(step, train.eval_every):
                    self._select(state, step, self._evaluate(state, step))
                ends = interrupt.after(step) or selection.stalled
                if self._is_due(step, train.checkpoint_every) or ends:
                    self._save(state, step)
                if ends:
                    break
            self._meter.clock.turn_to("other")
            with self._during("checkpoint"):
                self._checkpoints.wait()
        if step >= train.steps or selection.stalled:
            return ""  # a signal came, if at all, while a finished run was saved
        if interrupt.caught:
            self._note_stop(interrupt, step)
        return interrupt.caught

    def _note_stop(self, interrupt: Interrupt, step: int) -> None:
        signal = interrupt.caught
        if not self._group.alone:
            signal += f" of process {interrupt.by}"
        self._terminal.note(
            f"{signal}: stopped after step {step} and saved; the same command continues."
        )

    def close(self) -> None:
        """Prints the closing summary, the model's last texts, and what to do next."""
        cfg = self._experiment.cfg
        self._terminal.rows("result", self._result())
        if self._recorder.samples:
            texts = self._recorder.samples[-1]["texts"]
            if cfg.objective.reads_tables:
                self._terminal.rows("written", texts, copied=True)
            else:
                self._terminal.sample(texts)
        commands = text.next_commands(cfg, self._workdir)
        if commands:  # there are none of word vectors trained from Python
            self._terminal.rows("next", commands, copied=True)

    def report(self, state: str = "running") -> None:
        """Writes report.html."""
        if self._page is not None:
            with self._optional("report.html"):
                where = f"{state}: step {self.done} of {self._experiment.cfg.train.steps}"
                best = None
                step = self._selection.best.step
                if step:
                    best = (f"best by {self._selection.metric.words}, after {step} steps", step)
                self._page.write(where, self._result(), self._baseline, best)

    @contextlib.contextmanager
    def _optional(self, what: str) -> Iterator[None]:
        """Lets the run continue if the block fails; notifies the user once."""
        try:
            yield
        except Exception as error:
            if what not in self._failed:
                self._terminal.note(
                    f"notice: {what} cannot be written ({first_line(error)}); the run continues"
                    " without it."
                )
            self._failed.add(what)

    @functools.cached_property
    def _baseline(self) -> tuple[str, float] | None:
        objective = self._experiment.cfg.objective
        fitted = objective.fit_baseline(self._experiment.eval_data)
        write_baseline(self._recorder.folder, fitted)
        return objective.baseline(self._experiment.eval_data, fitted)

    def _result(self) -> text.Rows:
        shown = self._experiment.cfg.objective.shown
        best = self._selection.words
        if not self._recorder.of("eval"):
            return []
        used = [("time", clock.words(self._meter.clock.read())), usage.peak()]
        return text.closing(
            self._recorder,
            shown,
            self._baseline,
            self._compiles.count,
            self._workdir,
            best,
            used,
            trackers=self._experiment.cfg.train.trackers,
        )

    def _texts(self, params: Params, step: int) -> list[tuple[str, str]]:
        """Returns texts to show when the evaluation generated none.

        These are a decoder's sample, or at the end the outputs of a task.
        """
        run = self._experiment
        data = self._experiment.eval_data
        train = self._experiment.cfg.train
        tokens = train.sample_tokens
        examples = data.order[:WRITTEN]
        objective = run.cfg.objective
        wants_texts = tokens or step == train.steps
        if not step or not self._group.alone or not wants_texts:
            return []
        with (
            self._during("evaluation"),
            self._compiles.allow_first("texts"),
            self._optional("a sample"),
        ):
            if tokens and writes(run.cfg.model):
                saved = run.program.saved_params(params)
                return sample(run.program.model, saved, data, tokens=tokens, seed=run.cfg.seed)
            written = objective.write(run.writer(params), data.records, examples)
            if not written:
                return []
            return show(objective, written, examples, data)
        return []

    def _settle(self, ahead: int) -> None:
        """Collects the results of finished steps until at most `ahead` steps are in flight."""
        while len(self._in_flight) > ahead:
            step, metrics = self._in_flight.popleft()
            with self._during("devices"):
                values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            seconds = self._meter.add(values)
            for watcher in self._watchers:
                watcher.step_done(step, values, seconds)
            self.done = step
            self._terminal.advance(step)
            is_due = (
                step % self._experiment.cfg.train.log_every == 0
                or step == self._experiment.cfg.train.steps
            )
            if is_due and not self._meter.is_empty:
                record = self._meter.record(step) | usage.memory()
                self._record(record)
                self._terminal.train_record(record)

    def _is_due(self, step: int, every: int) -> bool:
        """Returns whether something that happens every N steps is due after this one.

        It always is after the last step; with every=0, after the first that completes an epoch.
        """
        train = self._experiment.cfg.train
        rows = self._experiment.train_data.num_examples
        if step == train.steps:
            return True
        if every:
            return step % every == 0
        return step * train.batch_size // rows > (step - 1) * train.batch_size // rows

    def _evaluate(self, state: TrainState, step: int) -> dict[str, float]:
        self._settle(0)
        run = self._experiment
        with (
            self._during("evaluation"),
            self._compiles.allow_first("evaluation of the average" if step else "evaluation"),
        ):
            params = evaluated_params(state) if step else state.params
            steps = run.program.eval_step, params, run.eval_batches()
            evaluation = evaluate(run.cfg.objective, *steps, run.eval_data, run.writer(params))
        values = evaluation.metrics
        texts = evaluation.texts or self._texts(params, step)
        record = {"step": step, "split": "eval", **values}
        self._record(record)
        if texts:
            self._recorder.add_sample(step, texts)
        self._recorder.write_breakdown(step, evaluation.breakdown)
        self._terminal.eval_record(record)
        self._selection.check(values)
        with self._during("other"):
            self.report()
            for watcher in self._watchers:
                watcher.evaluated(step, record)
        return values

    def _select(self, state: TrainState, step: int, values: dict[str, float]) -> None:
        """Saves the parameters if their evaluation is the best."""
        if self._selection.after(step, values):
            with self._during("checkpoint"), self._compiles.allow_first("best checkpoint"):
                self._checkpoints.wait()  # one save at a time, as processes meet in each
                params = self._experiment.program.saved_params(evaluated_params(state))
                self._selection.save(step, params, self._meta(step))

    def _save(self, state: TrainState, step: int) -> None:
        self._settle(0)  # a state is saved only after its step is known to be finite
        with self._during("checkpoint"), self._compiles.allow_first("checkpoint"):
            self._selection.wait()
            self._checkpoints.save(step, self._experiment.program.saved(state), self._meta(step))
            for watcher in self._watchers:
                watcher.saved(step)

    def _record(self, record: Json) -> None:
        self._recorder.add(record)
        for watcher in self._watchers:
            watcher.recorded(record)

    def _meta(self, step: int) -> Json:
        meta = resume.meta(self._experiment.cfg, self._experiment.fingerprint, step)
        kept = [watcher.remembered() for watcher in self._watchers]
        own = {"best": self._selection.best._asdict(), "window": self._meter.window}
        return {**meta, **collections.ChainMap(*kept), **own}
