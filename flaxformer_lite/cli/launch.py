"""Launches a run from flags; an error ends it with one line and an exit code."""

import contextlib
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from ml_collections import ConfigDict
from rich.console import Console

from flaxformer_lite import first_model
from flaxformer_lite.checkpoints.manager import CheckpointError
from flaxformer_lite.cli import command_line, failures
from flaxformer_lite.cli.open_model import print_warnings
from flaxformer_lite.config import ConfigError
from flaxformer_lite.runs import run as runs
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runtime import invocation
from flaxformer_lite.runtime.join import join
from flaxformer_lite.runtime.processes import ALONE, CONTINUES, LOST, ProcessError, Processes
from flaxformer_lite.storage.lock import release_held
from flaxformer_lite.storage.objects import objects_at
from flaxformer_lite.storage.stores import StorageError

LOG = "errors.log"  # in the workdir: messages of libraries, and the traceback of the final error
SMALLER = (
    "lower train.batch_size, raise train.accumulate or train.loss_chunks, or set model.remat=full."
)
# Errors of CPU and GPU collectives when a peer is gone; TPUs wait for jax.distributed to end the
# process.
COLLECTIVE = re.compile(r"Gloo|NCCL|coordination service")
LOST_PEER = re.compile(rf"{COLLECTIVE.pattern}|[Cc]onnection (reset|closed|refused)|UNAVAILABLE")


def main(
    config: ConfigDict,
    workdir: str,
    *,
    stopped_code: int = 0,
    allow_plugins: bool = False,
    **how_to_join,
) -> None:
    """Checks the config and trains, together with the other processes if there are any.

    Exits with `stopped_code` if SIGTERM or SIGHUP stopped the run and its state was saved, 2 on bad
    input, 1 if the run failed, and 128 + the number of the signal that ended it otherwise.

    Args:
      config: the experiment.
      workdir: folder or address for everything the run writes.
      stopped_code: exit code by which a scheduler can tell a stopped run from a finished one.
      allow_plugins: as in `read_experiment`.
      **how_to_join: arguments of runtime.join.join.
    """
    group = ALONE
    log = Path(workdir, LOG)
    store = objects_at(workdir)
    if store:
        log = Path(tempfile.mkdtemp(prefix="flaxformer_lite-"), LOG)

    def end(received: signal.Signals) -> None:
        what = "interrupted" if received == signal.SIGINT else f"{received.name}: ended at once"
        try:
            Console(stderr=True).show_cursor()  # a progress bar hides it
            release_held()
            _end(group, f"{what}; {CONTINUES}", 128 + received, at_once=True)
        finally:
            os._exit(128 + received)  # even if stderr is closed

    with Interrupt(end) as interrupt:
        first_model.notice_untested()
        try:
            group = join(**how_to_join)
            if not group.first:
                # C++ libraries print to stdout too.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            given = invocation.fields_given(invocation.underscored(sys.argv))
            notices = print_warnings() if group.first else contextlib.nullcontext()
            with failures.logged(log, RunError), notices:
                cfg = read_experiment(config, workdir, given, allow_plugins=allow_plugins)
                caught = runs.run(cfg, workdir, group, interrupt).signal
            group.close()
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a library written in Rust raises no Exception on panic
            message, code, at_once = explain(error, workdir, group)
            if store and group.first and log.exists():
                with contextlib.suppress(StorageError):
                    store.write(LOG, log.read_bytes())
                    log.unlink()
            if store:
                _remove_folder(log)
            _end(group, message, code, at_once=at_once)
    if store:
        _remove_folder(log)
    code = stopped_code if caught else 0
    if caught == "SIGINT":
        code = 128 + signal.SIGINT
    if code:
        sys.exit(code)


def _remove_folder(log: Path) -> None:
    """Removes the temporary folder of a store run's log, unless it still holds the log."""
    with contextlib.suppress(OSError):
        log.parent.rmdir()


def explain(error: BaseException, workdir: str, group: Processes) -> tuple[str, int, bool]:
    """Returns a failed run's message, exit code, and whether exit handlers might fail as well."""
    match error:
        case ConfigError():
            return str(error), command_line.BAD_INPUT, False
        case CheckpointError() if not group.alone and COLLECTIVE.search(str(error)):
            return f"{LOST} ({str(error)[:200]})", command_line.EXIT_FAILED, True
        case CheckpointError() | RunError() | ProcessError():
            message = str(error)
            if failures.DISK.search(message):
                message += " Free some space; the same command continues."
            return message, command_line.EXIT_FAILED, False
        case OSError():
            where = error.filename or workdir
            message = f"{where}: {error.strerror or error}; the same command continues."
            return message, command_line.EXIT_FAILED, True
    if not group.alone and LOST_PEER.search(str(error)):
        return f"{LOST} ({failures.first_line(error)[:200]})", command_line.EXIT_FAILED, True
    return *failures.explain(error, SMALLER), True


def _end(group: Processes, message: str, code: int, *, at_once: bool) -> NoReturn:
    if not group.alone:
        command_line.print_stack()
        group.fail(message, code)
    command_line.fail(message, code, at_once=at_once)
