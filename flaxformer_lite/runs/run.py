"""Runs an experiment: opens its files, its data and its model, and trains."""

import contextlib
from pathlib import Path

from ml_collections import ConfigDict

from flaxformer_lite.checkpoints.mirror import mirrored, place_of
from flaxformer_lite.checkpoints.workdir import newest_first
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.runs.callbacks.tracking import check_installed
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.loop import RunFiles, RunResult, train
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.start.preflight import data_facts, lock_workdir, program_facts
from flaxformer_lite.runs.start.setup import prepare
from flaxformer_lite.runtime.processes import ALONE, Processes


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
        experiment = prepare(cfg)
        stored_steps = [int(at.name) for at in newest_first(mirror.folder, "checkpoints")]
        group.agree("data", data_facts(experiment, stored_steps))
        files = RunFiles(place, mirror, lock)
        return train(experiment, cfg, files, clock, group, interrupt or Interrupt())
