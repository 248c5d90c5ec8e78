"""A run from its first step to its closing summary. Only this file uses time, disk and terminal; the rest is pure."""

import collections
import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.analysis import flops, recompiles
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.workdir import write_inputs
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.evaluate import evaluate
from flaxformer_lite.training.interrupt import Interrupt
from flaxformer_lite.training.report import plot, text
from flaxformer_lite.training.report.metrics import Meter, Recorder
from flaxformer_lite.training.report.sample import sample, writes
from flaxformer_lite.training.report.terminal import Terminal
from flaxformer_lite.training.start import precompile, resume
from flaxformer_lite.training.start.initial_state import initial_state
from flaxformer_lite.training.start.preflight import RunError, data_facts, lock_workdir, program_facts
from flaxformer_lite.training.start.setup import Experiment, prepare
from flaxformer_lite.training.state import TrainState, param_count

AHEAD = 2  # steps dispatched before the host reads a result, so that neither waits for the other


def run(
    cfg: ExperimentConfig, workdir: str | Path, group: Processes = ALONE, interrupt: Interrupt | None = None
) -> str:
    """Trains, starting from the newest checkpoint in `workdir` if there is one.

    Args:
      cfg: the experiment.
      workdir: gets checkpoints/, metrics.jsonl, tensorboard/, config.json, tokenizer/ and loss.png.
      group: the processes of the run; each writes its part of the checkpoints, and process 0 everything else.
      interrupt: hears signals; by default they do what they do elsewhere in the program.

    Returns:
      The signal that ended the run early, such as "SIGTERM"; "" if it ran to its end.

    Raises:
      ConfigError: config, data and checkpoints do not fit together.
      CheckpointError: checkpoints cannot be written or read.
      RunError: the loss is no longer finite, or the workdir cannot be used.
    """
    workdir = Path(workdir)
    with contextlib.ExitStack() as stack:
        group.agree("config and code", {"--num_processes": group.count, **program_facts(cfg)})
        stack.enter_context(lock_workdir(workdir, group))
        experiment = prepare(cfg)
        group.agree("data", data_facts(experiment.train_data, workdir / "checkpoints"))
        checkpoints = stack.enter_context(Checkpoints(workdir / "checkpoints", keep=cfg.train.keep, group=group))
        terminal = Terminal(cfg.train.steps, cfg.objective.shown, quiet=not group.first)
        stack.enter_context(terminal.listening())
        make: Callable[[], TrainState] = functools.partial(initial_state, experiment, cfg.train.init_from)
        if (checkpoints.latest_step or 0) < cfg.train.steps:
            needed = ("train_step", "eval_step") if checkpoints.latest_step else ("eval_step", "train_step")
            if checkpoints.latest_step is None and not cfg.train.init_from:  # a thread that reads files outlives ctrl-c
                make = stack.enter_context(precompile.making(make))
            experiment = stack.enter_context(precompile.precompile(experiment, *needed, group=group))
        state, start, notices = _begin(experiment, checkpoints, make)
        recorder = Recorder(workdir, start if checkpoints.latest_step is not None else -1, writes=group.first)
        stack.callback(recorder.close)
        terminal.rows("flaxformer_lite", text.banner(experiment, workdir, start))
        for notice in [*notices, *recorder.notices]:
            terminal.note(f"notice: {notice}")
        if group.first:
            write_inputs(workdir, experiment.cfg, experiment.train_data.tokenizer)
        trainer = Trainer(experiment, checkpoints, recorder, terminal, group)
        state, caught = trainer.train(state, start, interrupt or Interrupt())
        if group.first and not caught:
            trainer.close(state, workdir)
        return caught


class Trainer:
    """The loop over steps, with metrics, evaluation and checkpoints."""

    def __init__(
        self, experiment: Experiment, checkpoints: Checkpoints, recorder: Recorder, terminal: Terminal, group: Processes
    ):
        self._experiment, self._checkpoints, self._group = experiment, checkpoints, group
        self._recorder, self._terminal = recorder, terminal
        self._in_flight: collections.deque[tuple[int, Any]] = collections.deque()
        self._compiles = recompiles.RecompileCounter()
        peak = flops.peak(experiment.mesh.devices.flat[0])
        self._meter = Meter(experiment.tokens_per_step, experiment.flops_per_step, peak and peak * experiment.mesh.size)

    def train(self, state: TrainState, start: int, interrupt: Interrupt) -> tuple[TrainState, str]:
        """Runs the steps start + 1 .. train.steps; returns the last state, and the signal that ended them early or ""."""
        train, train_step = self._experiment.cfg.train, self._experiment.train_step
        evaluated = self._group.coordinate("records", len(self._recorder.of("eval")), lambda counts: counts[0])
        with (
            self._terminal.training(start),
            contextlib.closing(self._experiment.train_batches(start)) as placed,
            contextlib.ExitStack() as stepping,
        ):
            if start == 0 or not evaluated:
                self._evaluate(state, start)
            batches, step = self._meter.waiting(placed), start
            for step, batch in zip(range(start + 1, train.steps + 1), batches, strict=False):
                state, metrics = train_step(state, batch)
                if step == start + 1:  # before, while the step compiles, there is nothing to save
                    stepping.enter_context(interrupt.training(start, self._group))
                self._in_flight.append((step, metrics))
                self._settle(AHEAD)
                if step == start + 2:
                    self._compiles.start()
                if step % train.eval_every == 0 or step == train.steps:
                    self._evaluate(state, step)
                ends = interrupt.after(step)
                if step % train.checkpoint_every == 0 or step == train.steps or ends:
                    self._save(state, step)
                if ends:
                    break
            self._checkpoints.wait()
        caught = interrupt.caught if step < train.steps else ""  # else it came while a finished run was saved
        if caught:
            signal = caught + ("" if self._group.alone else f" of process {interrupt.by}")
            self._terminal.note(f"{signal}: stopped after step {step} and saved; the same command continues.")
        return state, caught

    def close(self, state: TrainState, workdir: Path) -> None:
        """Writes the loss curve, the closing summary and, for a decoder, a sample of text."""
        cfg, data = self._experiment.cfg, self._experiment.eval_data
        objective, baseline, tokens = cfg.objective, cfg.objective.baseline(data), cfg.train.sample_tokens
        title = f"{workdir.name}: {cfg.model.family}, {param_count(state.params) / 1e6:.3g}M parameters"
        curve, history = workdir / "loss.png", self._recorder.history
        plot.loss_curve(curve, history, headline=objective.headline, baseline=baseline, title=title)
        rows = text.closing(self._recorder, objective.shown, baseline, self._compiles.count, workdir)
        self._terminal.rows("result", rows)
        if tokens and writes(cfg.model) and self._group.alone:
            written = sample(self._experiment.model, state.params, data, tokens=tokens, seed=cfg.seed)
            self._terminal.sample(*written)
        self._terminal.rows("next", text.next_commands(cfg, workdir))

    def _settle(self, ahead: int) -> None:
        """Collects the results of finished steps until at most `ahead` steps are in flight."""
        while len(self._in_flight) > ahead:
            step, metrics = self._in_flight.popleft()
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            self._check_finite(step, values)
            self._meter.add(values)
            self._terminal.advance(step)
            if step % self._experiment.cfg.train.log_every == 0 or step == self._experiment.cfg.train.steps:
                record = self._meter.record(step)
                self._recorder.add(record)
                self._terminal.train_record(record)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        if all(math.isfinite(values[name]) for name in ("loss", "grad_norm", "param_norm")):
            return
        good = self._checkpoints.latest_step
        where = "there is no checkpoint" if good is None else f"the last good checkpoint is step {good}"
        raise RunError(f"not finite at step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}, parameter"
                       f" norm {values['param_norm']}; {where} in {self._checkpoints.folder}. Try a lower"
                       " optimizer.learning_rate, more optimizer.warmup_steps, or optimizer.clip_norm=1 in another"
                       " --workdir.")  # fmt: skip

    def _evaluate(self, state: TrainState, step: int) -> None:
        self._settle(0)
        run = self._experiment
        with self._meter.pause(), self._compiles.allow_first("evaluation"):
            values = evaluate(run.cfg.objective, run.eval_step, state.params, run.eval_batches(), run.eval_data)
        record = {"step": step, "split": "eval", **values}
        self._recorder.add(record)
        self._terminal.eval_record(record)

    def _save(self, state: TrainState, step: int) -> None:
        self._settle(0)  # a state is saved only after its step is known to be finite
        meta = resume.meta(self._experiment.cfg, self._experiment.train_data.fingerprint, step)
        with self._meter.pause(), self._compiles.allow_first("checkpoint"):
            self._checkpoints.save(step, state, meta)


def _begin(
    experiment: Experiment, checkpoints: Checkpoints, make: Callable[[], TrainState]
) -> tuple[TrainState, int, list[str]]:
    """Restores the newest checkpoint, or makes a new state; returns (state, steps done, notices)."""
    cfg, data = experiment.cfg, experiment.train_data
    restored = checkpoints.restore(experiment.target, lambda meta: resume.check(meta, cfg, data.fingerprint))
    if restored is None:
        return make(), 0, []
    notices = [*restored.notices, *resume.notices(restored.meta, cfg)]
    if restored.step >= cfg.train.steps:
        notices.append(f"step {restored.step} is done and train.steps={cfg.train.steps}: nothing is left to train.")
    return restored.state, restored.step, notices
