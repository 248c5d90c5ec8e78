"""Trains a prepared experiment from its first step to its closing summary."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.analysis import flops
from flaxformer_lite.analysis.recompiles import RecompileCounter
from flaxformer_lite.checkpoints.manager import Checkpoints, first_line
from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.checkpoints.run_inputs import write_inputs
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import Metric, StepTools
from flaxformer_lite.runs.best import Best, Selection
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.callbacks.ending import Finite, Interruption, Watchdog
from flaxformer_lite.runs.callbacks.evaluation import Evaluation
from flaxformer_lite.runs.callbacks.keeping import Saving, StepRecords, Upload
from flaxformer_lite.runs.callbacks.profile import Profile
from flaxformer_lite.runs.callbacks.spikes import Spikes, suspect_rows
from flaxformer_lite.runs.callbacks.summary import Summary
from flaxformer_lite.runs.callbacks.tracking import Tracking
from flaxformer_lite.runs.experiment import Begin, Experiment
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.meter import Meter
from flaxformer_lite.runs.report.metrics import Recorder, sum_seconds
from flaxformer_lite.runs.report.reporting import Reporting
from flaxformer_lite.runs.report.run_page import RunPage
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.runs.start import reference, resume
from flaxformer_lite.runs.start.compiled_steps import compile_when_called
from flaxformer_lite.runs.trainer import Trainer
from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.storage.lock import Lock


class RunResult(NamedTuple):
    """The result of a run.

    Attributes:
      steps: the steps that are done, in this call and earlier ones.
      last: the metrics of the last evaluation by name, and its "step".
      best: the metrics of the best evaluation after the first step, by `train.best`, or by the
        objective's first metric where that is unset; {} if there is none.
      workdir: the folder or address of its files.
      signal: the signal that ended the run early, such as "SIGTERM"; "" if it ran to its end.
    """

    steps: int
    last: dict[str, float]
    best: dict[str, float]
    workdir: str
    signal: str


class RunFiles(NamedTuple):
    """The workdir of a run.

    Attributes:
      place: the folder or address of its files.
      mirror: the folder where they are written.
      lock: process 0's lock on an address; None of a folder, and on other processes.
    """

    place: Path
    mirror: Mirror
    lock: Lock | None


def train_experiment(
    experiment: Experiment,
    requested: ExperimentConfig,
    files: RunFiles,
    clock: Clock,
    group: Processes,
    interrupt: Interrupt,
) -> RunResult:
    """Trains, starting from the newest checkpoint if there is one; see `run`.

    Args:
      experiment: what `prepare_experiment` makes of the config.
      requested: the config before the run resolved it.
      files: the workdir.
      clock: has measured the time since the start.
      group: the processes of the run.
      interrupt: handles signals.
    """
    cfg = experiment.cfg
    workdir = files.mirror.folder
    with contextlib.ExitStack() as stack:
        checkpoints, best = _open_checkpoints(stack, cfg, files, group)
        terminal = Terminal(cfg.train.steps, _shown(cfg), quiet=not group.first)
        stack.enter_context(terminal.listening())
        program = compile_when_called(experiment.program, group, clock.during)
        experiment = dataclasses.replace(experiment, program=program)
        begin = experiment.begin(experiment, checkpoints, files.mirror, group)
        experiment = reference.attach(
            begin.experiment, begin.state, begin.step, workdir, writes=group.first
        )
        selection = Selection(cfg, best, Best(**begin.record.get("best", {})))
        last_step = -1  # no record of an earlier start is kept, if it left no checkpoint
        if checkpoints.latest_step is not None:
            last_step = begin.step
        recorder = Recorder(workdir, last_step, writes=group.first)
        reporting = Reporting(recorder, terminal, clock, RecompileCounter())
        about = text.banner(experiment, files.place, begin.step)
        _announce(about, begin, cfg.train.steps, selection, reporting)
        page = None
        if group.first:
            data = experiment.train_data
            write_inputs(workdir, cfg, data.tokenizer, data.fingerprint)
            page = RunPage(workdir, cfg, requested, about, recorder, clock)
        summary = Summary(experiment, selection, page, files.place, begin.step, reporting)
        run = _Run(experiment, begin, checkpoints, selection, reporting, files, group)
        callbacks = _callbacks(run, summary, interrupt, last_step)
        for callback in callbacks:
            stack.callback(callback.close)
        trainer = _trainer(experiment, callbacks, reporting, group)
        try:
            with (
                terminal.training(begin.step),
                contextlib.closing(experiment.train_batches(begin.step)) as batches,
            ):
                trainer.train(begin.state, batches, begin.step, cfg.train.steps)
            signal = ""  # one that came while a finished run was saved ends nothing
            if trainer.done < cfg.train.steps and not selection.stalled:
                signal = interrupt.caught
            if signal:
                _note_stop(terminal, interrupt, trainer.done, group)
            elif group.first:
                summary.print_closing()
        # The page of a run that ctrl-C has ended says so, too.
        except BaseException as error:
            summary.write_page(f"ended by an error ({first_line(error)})")
            raise
        summary.write_page(f"stopped by {signal}" if signal else "finished")
        metric = selection.metric if cfg.train.best else cfg.objective.shown[0]
        last, best_one = _last_and_best(recorder.of("eval"), metric)
        return RunResult(trainer.done, last, best_one, str(files.place), signal)


class _Run(NamedTuple):
    """The parts of which the callbacks of a run are made."""

    experiment: Experiment
    begin: Begin
    checkpoints: Checkpoints
    selection: Selection
    reporting: Reporting
    files: RunFiles
    group: Processes


def _callbacks(run: _Run, summary: Summary, interrupt: Interrupt, last_step: int) -> list[Callback]:
    """Returns what follows a run, in the order in which it is told of a step.

    The loss is looked at first; a step is evaluated before it may end the run, and saved when that
    is known.
    """
    experiment, begin, checkpoints, selection, reporting, files, group = run
    cfg = experiment.cfg
    place = str(files.place)
    recorder = reporting.recorder
    clock = reporting.clock
    note = reporting.terminal.note
    workdir = files.mirror.folder

    def rows(step: int) -> list[str]:
        return experiment.name_rows(step) if group.first else []

    def meta(step: int) -> Json:
        record = resume.meta(cfg, experiment.train_data.fingerprint, step, experiment.base)
        for callback in (*followers, evaluation):
            record |= callback.remembered()
        return record

    followers: list[Callback] = [
        Finite(checkpoints, lambda step: suspect_rows(rows(step), place, step)),
        Spikes(rows, place, recorder, note, begin.record.get("losses", ())),
    ]
    if cfg.train.watchdog:
        followers.append(Watchdog(cfg.train.watchdog, clock))
    if group.first:
        config = resume.plain(cfg)
        followers.append(Tracking(cfg.train.trackers, note, workdir, config, last_step))
    if cfg.train.profile:
        name = "profile" if group.alone else f"profile/process-{group.index}"
        shown = files.mirror.place / name
        followers.append(Profile(cfg.train.profiled, workdir / name, clock, note, shown))
    followers += [
        StepRecords(cfg.train, _meter(experiment, reporting, begin.record), reporting),
        summary,
        Upload(files.mirror, files.lock, reporting.terminal),
    ]
    recorder.listeners += [callback.recorded for callback in followers]
    evaluated = group.coordinate("records", len(recorder.of("eval")), lambda counts: counts[0])
    evaluation = Evaluation(
        experiment,
        selection,
        checkpoints,
        meta,
        reporting,
        is_first=begin.step == 0 or not evaluated,
        alone=group.alone,
        followers=tuple(followers),
    )
    ending = Interruption(interrupt, begin.step, group)
    saving = Saving(experiment, checkpoints, selection, meta, reporting)
    return [*followers, evaluation, ending, saving]


def _announce(
    about: text.Rows, begin: Begin, steps: int, selection: Selection, reporting: Reporting
) -> None:
    """Prints the banner of a run, and the notices of its start."""
    terminal = reporting.terminal
    terminal.rows("flaxformer_lite", about)
    notices = [*begin.notices]
    if selection.stalled and begin.step < steps:
        notices.append(f"{selection.words}: nothing is left to train.")
    for notice in [*notices, *reporting.recorder.notices]:
        terminal.note(f"notice: {notice}")


def _open_checkpoints(
    stack: contextlib.ExitStack, cfg: ExperimentConfig, files: RunFiles, group: Processes
) -> tuple[Checkpoints, Checkpoints | None]:
    """Opens the run's checkpoints, and those of its best step if `train.best` asks for them."""

    def open_folder(name: str, keep: int) -> Checkpoints:
        opened = Checkpoints(files.place / name, keep=keep, group=group, before=files.mirror.send)
        return stack.enter_context(opened)

    checkpoints = open_folder("checkpoints", cfg.train.keep)
    best = None
    if cfg.train.best:
        best = open_folder("best", keep=1)
    return checkpoints, best


def _note_stop(terminal: Terminal, interrupt: Interrupt, step: int, group: Processes) -> None:
    signal = interrupt.caught
    if not group.alone:
        signal += f" of process {interrupt.by}"
    terminal.note(f"{signal}: stopped after step {step} and saved; the same command continues.")


def _last_and_best(records: Sequence[Json], metric: Metric) -> tuple[Json, Json]:
    """Returns the metrics of the last evaluation, and of the best one after the first step."""
    last: Json = {}
    best: Json = {}
    best_value = math.nan
    for record in records:
        last = {name: value for name, value in record.items() if name != "split"}
        if not record["step"]:
            continue
        value = record.get(metric.name, math.nan)
        is_first = math.isnan(best_value) and not math.isnan(value)
        if is_first or metric.is_better(value, best_value):
            best = last
            best_value = value
    return last, best


def _shown(cfg: ExperimentConfig) -> list[Metric]:
    """Returns the metrics for the terminal; `train.best`'s is shown live, too."""
    shown = []
    for metric in cfg.objective.shown:
        is_live = metric.live or metric.name == cfg.train.best
        shown.append(metric._replace(live=is_live))
    return shown


def _meter(experiment: Experiment, reporting: Reporting, record: Json) -> Meter:
    """Returns a meter that includes the time and the unfinished record of the run so far."""
    recorder = reporting.recorder
    clock = reporting.clock
    peak = flops.peak(experiment.program.mesh.devices.flat[0])
    earlier = sum_seconds(recorder.history)
    clock.seconds["repeated"] += sum_seconds(recorder.dropped).total()
    peak_of_mesh = peak and peak * experiment.program.mesh.size
    return Meter(
        experiment.program.tokens_per_step,
        experiment.program.flops_per_step,
        peak_of_mesh,
        clock,
        earlier,
        record.get("window", ()),
    )


def _trainer(
    experiment: Experiment,
    callbacks: Sequence[Callback],
    reporting: Reporting,
    group: Processes,
) -> Trainer:
    recorder = reporting.recorder
    tools = StepTools(
        save_record=recorder.add_collected,
        load_record=lambda step: recorder.dropped_collected.get(step, {}),
        show_notice=lambda line: reporting.terminal.note(f"notice: {line}"),
        time_section=reporting.clock.during,
        share_values=lambda value: group.coordinate("a step", value, list),
    )
    stepper = experiment.cfg.objective.make_stepper(experiment, tools)
    train_step = stepper or experiment.program.train_step
    return Trainer(train_step, callbacks, reporting.clock, reporting.compiles)
