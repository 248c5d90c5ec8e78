"""Runs an experiment: opens its files, its data and its model, and trains."""

import contextlib
import logging
from pathlib import Path

from ml_collections import ConfigDict

from flaxformer_lite.checkpoints.mirror import open_mirror, place_of
from flaxformer_lite.checkpoints.workdir import newest_first
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.pretrained.load import NAMED_HEADS
from flaxformer_lite.runs.callbacks.tracking import check_installed
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.loop import RunFiles, RunResult, train_experiment
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.model_card import CardSource, add_card
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.preflight import data_facts, lock_workdir, program_facts
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.state import param_count

LOG = logging.getLogger("flaxformer_lite")


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
        report.html, and a model card, README.md, when it ends.
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
        cfg = read_experiment(cfg, workdir)
    place = place_of(workdir)
    clock = Clock()
    if group.first:
        # First of all, as to read the data may take long.
        check_installed(cfg.train.trackers)
    with contextlib.ExitStack() as stack:
        group.agree("config and code", {"--num_processes": group.count, **program_facts(cfg)})
        # Locked before anything in the workdir is read, as another run could still change it.
        lock = stack.enter_context(lock_workdir(place, group))
        mirror = stack.enter_context(open_mirror(place, lock))
        experiment = prepare_experiment(cfg)
        stored_steps = [int(at.name) for at in newest_first(mirror.folder, "checkpoints")]
        group.agree("data", data_facts(experiment, stored_steps))
        files = RunFiles(place, mirror, lock)
        result = train_experiment(experiment, cfg, files, clock, group, interrupt or Interrupt())
        if group.first:
            _write_card(experiment, mirror.folder, place)
        return result


def _write_card(experiment: Experiment, folder: Path, place: Path) -> None:
    """Writes the model card of the workdir, unless a person has changed it."""
    cfg = experiment.cfg
    labels = ()
    if cfg.model.head in NAMED_HEADS:
        labels = cfg.objective.published_fields().get("labels", ())
    source = CardSource(run=folder, labels=labels, kind="flaxformer_lite", allow_plugins=True)
    program = experiment.program
    count = param_count(program.models.own_params(program.target.params))
    add_card(folder, str(place), cfg.model, count, cfg.train.init_from, source, LOG.warning)
