"""Runs an experiment from its first step to its closing summary, and owns what it opens."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from flaxformer_lite.analysis import flops
from flaxformer_lite.checkpoints.manager import Checkpoints, first_line
from flaxformer_lite.checkpoints.mirror import Mirror, mirrored, place_of
from flaxformer_lite.checkpoints.run_inputs import write_inputs
from flaxformer_lite.checkpoints.workdir import newest_first
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.runs.batch_history import BatchHistory
from flaxformer_lite.runs.best import Best, Selection
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.meter import Meter
from flaxformer_lite.runs.report.metrics import Recorder, seconds
from flaxformer_lite.runs.report.run_page import RunPage
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.runs.start import precompile, reference, resume
from flaxformer_lite.runs.start.auxiliary_weights import complete_state
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.preflight import data_facts, lock_workdir, program_facts
from flaxformer_lite.runs.start.setup import Experiment, prepare
from flaxformer_lite.runs.trainer import Reporting, Saving, Trainer
from flaxformer_lite.runs.watchers.estimate import Estimate
from flaxformer_lite.runs.watchers.finite import Finite
from flaxformer_lite.runs.watchers.pace import Pace
from flaxformer_lite.runs.watchers.profile import Profile
from flaxformer_lite.runs.watchers.spikes import Spikes, suspect_rows
from flaxformer_lite.runs.watchers.tracking import Tracking, check_installed
from flaxformer_lite.runs.watchers.upload import Upload
from flaxformer_lite.runs.watchers.watchdog import Watchdog
from flaxformer_lite.runs.watchers.watcher import Watcher
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.state import TrainState


class RunResult(NamedTuple):
    """What a run came to.

    Attributes:
      steps: the steps that are done, in this call and earlier ones.
      last: the metrics of the last evaluation by name, and its "step".
      best: those of the best evaluation after the first step, by `train.best`, or by the
        objective's first metric where that is unset; {} if there is none.
      workdir: the folder or address of its files.
      signal: the signal that ended the run early, such as "SIGTERM"; "" if it ran to its end.
    """

    steps: int
    last: dict[str, float]
    best: dict[str, float]
    workdir: str
    signal: str


def run(
    cfg: ExperimentConfig | ConfigDict,
    workdir: str | Path,
    group: Processes = ALONE,
    interrupt: Interrupt | None = None,
) -> RunResult:
    """Trains, starting from the newest checkpoint in `workdir` if there is one.

        >>> run(get_config("gpt2_tiny"), "runs/gpt2").last["loss"]  # doctest: +SKIP

    Args:
      cfg: an ExperimentConfig, or the ConfigDict of a page, as `pages.get_config` returns it.
      workdir: a folder, or an address such as gs://bucket/run, for checkpoints/, best/ (with
        `train.best`), metrics.jsonl, samples.jsonl, tensorboard/, config.json, tokenizer/ and
        report.html.
      group: the processes of the run; each writes its part of the checkpoints, and process 0
        everything else.
      interrupt: handles signals; by default they keep their usual handlers.

    Returns:
      What the run came to, also where an earlier call had trained all or some of its steps.

    Raises:
      ConfigError: config, data and checkpoints do not fit together.
      CheckpointError: checkpoints cannot be written or read.
      RunError: the loss is no longer finite, or the workdir cannot be used.
    """
    if not isinstance(cfg, ExperimentConfig):
        cfg = from_config_dict(ExperimentConfig, cfg)
    place = place_of(workdir)
    clock = Clock()
    if group.first:
        check_installed(cfg.train.trackers)
    with contextlib.ExitStack() as stack:
        group.agree("config and code", {"--num_processes": group.count, **program_facts(cfg)})
        lock = stack.enter_context(lock_workdir(place, group))
        mirror = stack.enter_context(mirrored(place, lock))
        workdir = mirror.folder
        requested = cfg
        experiment = prepare(cfg)
        cfg = experiment.cfg
        stored_steps = [int(at.name) for at in newest_first(workdir, "checkpoints")]
        group.agree("data", data_facts(experiment, stored_steps))
        saving = functools.partial(Checkpoints, group=group, before=mirror.send)
        checkpoints = stack.enter_context(saving(place / "checkpoints", keep=cfg.train.keep))
        best = None
        if cfg.train.best:
            best = stack.enter_context(saving(place / "best", keep=1))
        terminal = Terminal(cfg.train.steps, _shown(cfg), quiet=not group.first)
        stack.enter_context(terminal.listening())
        experiment, create_state = _start_compiling(
            stack, experiment, checkpoints.latest_step, group, clock
        )
        begin = _begin(experiment, checkpoints, create_state)
        experiment = reference.attach(
            experiment, begin.state, begin.step, create_state, workdir, writes=group.first
        )
        selection = Selection(cfg, best, Best(**begin.record.get("best", {})))
        notices = list(begin.notices)
        if selection.stalled and begin.step < cfg.train.steps:
            notices.append(f"{selection.words}: nothing is left to train.")
        last_step = -1  # no record of an earlier start is kept, if it left no checkpoint
        if checkpoints.latest_step is not None:
            last_step = begin.step
        recorder = Recorder(workdir, last_step, writes=group.first)
        about = text.banner(experiment, place, begin.step)
        terminal.rows("flaxformer_lite", about)
        for notice in [*notices, *recorder.notices]:
            terminal.note(f"notice: {notice}")
        report = None
        if group.first:
            data = experiment.train_data
            write_inputs(workdir, cfg, data.tokenizer, data.fingerprint)
            report = RunPage(workdir, cfg, requested, about, recorder, clock)
        meter = _meter(experiment, clock, recorder, begin.record)
        watchers = [
            *_loss_watchers(
                experiment, str(place), checkpoints, recorder, terminal, group, begin.record
            ),
            *_other_watchers(experiment, mirror, last_step, terminal, group, clock),
            Upload(mirror, lock, terminal),
        ]
        for watcher in watchers:
            stack.callback(watcher.close)
        trainer = Trainer(
            experiment,
            Saving(checkpoints, selection),
            Reporting(recorder, terminal, report, meter, place),
            watchers,
            group,
        )
        try:
            caught_signal = trainer.train(begin.state, begin.step, interrupt or Interrupt())
            if group.first and not caught_signal:
                trainer.close()
        except BaseException as error:
            trainer.report(f"ended by an error ({first_line(error)})")
            raise
        if caught_signal:
            trainer.report(f"stopped by {caught_signal}")
        else:
            trainer.report("finished")
        metric = cfg.objective.headline
        if cfg.train.best:
            metric = selection.metric
        last, best_one = _last_and_best(recorder.of("eval"), metric)
        return RunResult(trainer.done, last, best_one, str(place), caught_signal)


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


class _Begin(NamedTuple):
    """The beginning of a run.

    Attributes:
      state: the restored or new train state.
      step: the number of steps already done.
      record: the record of the restored checkpoint; empty for a new run.
      notices: for the terminal.
    """

    state: TrainState
    step: int
    record: Json
    notices: list[str]


def _shown(cfg: ExperimentConfig) -> list[Metric]:
    """Returns the metrics for the terminal, of which that of `train.best` is shown live too."""
    shown = []
    for metric in cfg.objective.shown:
        is_live = metric.live or metric.name == cfg.train.best
        shown.append(metric._replace(live=is_live))
    return shown


def _start_compiling(
    stack: contextlib.ExitStack,
    experiment: Experiment,
    latest: int | None,
    group: Processes,
    clock: Clock,
) -> tuple[Experiment, Callable[[], TrainState]]:
    """Starts compiling the steps and creating the first state in the background, if needed.

    Returns:
      The experiment with the steps that are being compiled, and a function that returns the first
      state.
    """
    cfg = experiment.cfg
    create_state: Callable[[], TrainState] = functools.partial(
        initial_state, experiment.program, cfg.train.init_from
    )
    if (latest or 0) >= cfg.train.steps:
        return experiment, create_state
    # The step that is needed first. A run evaluates before its first step.
    needed = ("eval_step", "train_step")
    if latest:
        needed = ("train_step", "eval_step")
    # Files are read in the main thread, as ctrl-C would not stop another one.
    reads_files = cfg.train.init_from or experiment.weights
    if latest is None and not reads_files:
        create_state = stack.enter_context(precompile.making(create_state))
    compiling = precompile.precompile(
        experiment.program, *needed, group=group, waiting=clock.during
    )
    program = stack.enter_context(compiling)
    return dataclasses.replace(experiment, program=program), create_state


def _meter(experiment: Experiment, clock: Clock, recorder: Recorder, record: Json) -> Meter:
    """Returns a meter that includes the time and the unfinished record of the run so far."""
    peak = flops.peak(experiment.program.mesh.devices.flat[0])
    earlier = seconds(recorder.history)
    clock.seconds["repeated"] += seconds(recorder.dropped).total()
    peak_of_mesh = peak and peak * experiment.program.mesh.size
    return Meter(
        experiment.program.tokens_per_step,
        experiment.program.flops_per_step,
        peak_of_mesh,
        clock,
        earlier,
        record.get("window", ()),
    )


def _loss_watchers(
    experiment: Experiment,
    place: str,
    checkpoints: Checkpoints,
    recorder: Recorder,
    terminal: Terminal,
    group: Processes,
    record: Json,
) -> list[Watcher]:
    """Returns the watchers of the loss, which are notified before all others."""
    history = BatchHistory(experiment.cfg, experiment.train_data)

    def rows(step: int) -> list[str]:
        if not group.first:
            return []
        return history.named(step)

    finite = Finite(checkpoints, lambda step: suspect_rows(rows(step), place, step))
    spikes = Spikes(rows, place, recorder, terminal.note, record.get("losses", ()))
    return [finite, spikes]


def _other_watchers(
    experiment: Experiment,
    mirror: Mirror,
    last_step: int,
    terminal: Terminal,
    group: Processes,
    clock: Clock,
) -> list[Watcher]:
    """Returns the other watchers, in the order in which they are notified."""
    cfg = experiment.cfg
    step = experiment.program.train_step
    note = terminal.note
    workdir = mirror.folder
    watchers: list[Watcher] = [Pace(group, clock, note)]
    if cfg.train.watchdog:
        watchers.append(Watchdog(cfg.train.watchdog, clock))
    if group.first:
        watchers.append(Estimate(cfg.train.steps, note))
        watchers.append(Tracking(cfg.train.trackers, note, workdir, resume.plain(cfg), last_step))
    if cfg.train.profile:
        profile_folder = "profile"
        if not group.alone:
            profile_folder = f"profile/process-{group.index}"
        program: Callable[[], str] = str  # returns "" for a step that is not compiled ahead
        if isinstance(step, precompile.BackgroundCompiled | precompile.CompiledByShape):
            program = step.as_text
        watchers.append(
            Profile(
                cfg.train.profiled,
                workdir / profile_folder,
                program,
                clock,
                note,
                mirror.place / profile_folder,
            )
        )
    return watchers


def _begin(
    experiment: Experiment, checkpoints: Checkpoints, create_state: Callable[[], TrainState]
) -> _Begin:
    """Restores the newest checkpoint, or creates a new state."""
    cfg = experiment.cfg
    target = experiment.program.saved(experiment.program.target)
    restored = checkpoints.restore(
        target, lambda meta: resume.check(meta, cfg, experiment.fingerprint)
    )
    if restored is None:
        return _Begin(create_state(), 0, {}, [])
    notices = [*restored.notices, *resume.notices(restored.meta, cfg)]
    if restored.step >= cfg.train.steps:
        notices.append(
            f"step {restored.step} is done and train.steps={cfg.train.steps}: nothing is left to"
            " train."
        )
    state = complete_state(experiment.program, restored.state)
    return _Begin(state, restored.step, restored.meta, notices)
