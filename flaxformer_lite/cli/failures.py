"""Describes errors in one line that says what to do.

What libraries print about them goes to a log, and --debug shows the traceback.
"""

import contextlib
import errno
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from flaxformer_lite.cli.command_line import BAD_INPUT, EXIT_FAILED
from flaxformer_lite.config.rules import ConfigError

MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|bad_alloc|(?:Failed|Unable) to allocate")
DISK = re.compile(r"No space left on device|Disk quota exceeded")
SMALLER = "take a smaller model, --dtype bfloat16, or fewer and shorter texts."
DEBUG = "--debug shows the traceback."


def explain(error: BaseException, smaller: str = SMALLER) -> tuple[str, int]:
    """Returns one line about an error, and the exit code: 2 for bad input, else 1.

    Args:
      error: the error that ended a command.
      smaller: what to do if memory is exhausted.
    """
    if isinstance(error, ConfigError):
        return str(error), BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", 130
    # Imported here, as --help should not wait for them.
    from flaxformer_lite.checkpoints.manager import CheckpointError
    from flaxformer_lite.pretrained.safetensors import WeightsError

    message = first_line(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    if isinstance(error, WeightsError):
        return message, BAD_INPUT
    if isinstance(error, CheckpointError):
        return message, EXIT_FAILED
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if is_full or DISK.search(message):
        line = f"the disk is full ({message}); free some space, and run the same command again."
        return line, EXIT_FAILED
    if isinstance(error, MemoryError) or MEMORY.search(message):
        return f"out of memory ({message or 'of this machine'}); {smaller}", EXIT_FAILED
    if isinstance(error, OSError):
        return message, EXIT_FAILED
    if isinstance(error, RecursionError):
        return f"something is nested too deeply ({message}); {DEBUG}", EXIT_FAILED
    return f"{type(error).__name__}: {message or 'no message'}; {DEBUG}", EXIT_FAILED


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; an OSError's includes the file name."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # Python cannot print some arguments, such as integers of 5,000 digits
        return ""
    return lines[0] if lines else ""


class _LogFile(logging.FileHandler):
    """A log that drops records that cannot be written: on a full disk, or without a workdir."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Prints nothing, where logging would print a traceback."""


@contextlib.contextmanager
def logged(path: Path, *explained: type[BaseException]) -> Iterator[None]:
    """Redirects what libraries log, and errors in threads and callbacks, to a file.

    The file is created when something is written. The traceback of the error that ends the block
    goes there too, unless it is one of `explained`, whose message suffices.
    """
    threads = threading.excepthook
    callbacks = sys.unraisablehook

    def write(
        kind: type[BaseException], error: BaseException | None, stack: TracebackType | None
    ) -> None:
        with (
            contextlib.suppress(OSError),
            path.open("a", encoding="utf-8", errors="replace") as file,
        ):
            file.writelines(traceback.format_exception(kind, error, stack))

    threading.excepthook = lambda args: write(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: write(args.exc_type, args.exc_value, args.exc_traceback)
    handler = _LogFile(path, encoding="utf-8", delay=True)
    root = logging.getLogger()
    absl = logging.getLogger("absl")
    before = root.handlers
    levels = (root.level, absl.level)
    root.handlers = [handler]
    root.setLevel(logging.ERROR)
    absl.setLevel(logging.ERROR)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, (*explained, ConfigError, SystemExit, KeyboardInterrupt)):
            write(type(error), error, error.__traceback__)
        raise
    finally:
        root.handlers = before
        root.setLevel(levels[0])
        absl.setLevel(levels[1])
        handler.close()
        threading.excepthook = threads
        sys.unraisablehook = callbacks
