"""Launches a run from flags; errors end it with one line and an exit code."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

from ml_collections import ConfigDict

from flaxformer_lite import versions
from flaxformer_lite.checkpoints.manager import CheckpointError
from flaxformer_lite.cli import command_line, failures
from flaxformer_lite.config import ConfigError
from flaxformer_lite.runtime import invocation, processes
from flaxformer_lite.runtime.processes import ALONE, ProcessError, Processes
from flaxformer_lite.training import loop
from flaxformer_lite.training.interrupt import Terminated, terminate
from flaxformer_lite.training.start.adopt import read_experiment

CONTINUES = "the same command continues from the last checkpoint, if there is one."
LOG = "errors.log"  # in the workdir: what libraries print of errors, and the stack of the one that ended the run
SMALLER = "lower train.batch_size, raise train.accumulate or train.loss_chunks, or set model.remat=full."
# Errors of CPU and GPU collectives when a peer is gone; TPUs wait for jax.distributed to end the process.
LOST_PEER = re.compile(r"Gloo|NCCL|[Cc]onnection (reset|closed|refused)|coordination service|UNAVAILABLE")


def main(config: ConfigDict, workdir: str, **how_to_join) -> None:
    """Checks the config and runs it, together with the other processes if there are any.

    Exits with 0 if SIGTERM stopped the run and it was saved, 2 on bad input, 1 on a failed run, else 128 + the number
    of the signal that ended it.

    Args:
      config: config of the experiment.
      workdir: workdir of the run.
      **how_to_join: arguments of processes.join.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    versions.notice_untested()
    group = ALONE
    try:
        group = processes.join(**how_to_join)
        if not group.first:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # libraries below print to stdout too
        given = command_line.fields_given(invocation.underscored(sys.argv))
        with failures.logged(Path(workdir, LOG)):
            caught = loop.run(read_experiment(config, workdir, given), workdir, group)
        group.close()
    except (Exception, KeyboardInterrupt, Terminated) as error:
        message, code, at_once = explain(error, workdir, group)
        _end(group, message, code, at_once=at_once)
    if caught == "SIGINT":
        sys.exit(128 + signal.SIGINT)


def explain(error: BaseException, workdir: str, group: Processes) -> tuple[str, int, bool]:
    """Returns the message about the end of a run, its exit code, and whether exit handlers might fail as well."""
    match error:
        case ConfigError():
            return str(error), command_line.BAD_INPUT, False
        case CheckpointError() | loop.RunError() | ProcessError():
            return str(error), command_line.FAILED, False
        case Terminated():
            return f"SIGTERM: ended at once; {CONTINUES}", 128 + signal.SIGTERM, False
        case KeyboardInterrupt():
            return f"interrupted; {CONTINUES}", 128 + signal.SIGINT, False
        case OSError():
            where = error.filename or workdir
            return f"{where}: {error.strerror or error}; the same command continues.", command_line.FAILED, True
    if not group.alone and LOST_PEER.search(str(error)):
        said = failures.first_line(error)[:200]
        return f"another process is gone ({said}); its own output says why; {CONTINUES}", command_line.FAILED, True
    return *failures.explain(error, SMALLER), True


def _end(group: Processes, message: str, code: int, *, at_once: bool) -> NoReturn:
    if not group.alone:
        group.fail(message, code)
    command_line.fail(message, code, at_once=at_once)
