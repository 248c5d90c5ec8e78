"""The package's log messages, told to a user."""

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def heard(least: int, say: Callable[[str], None]) -> Iterator[None]:
    """Hands the messages of at least this level to a function within the block, and to nothing
    else."""
    log = logging.getLogger("flaxformer_lite")
    handler = logging.Handler(least)
    handler.emit = lambda record: say(record.getMessage())  # type: ignore[method-assign]
    before = log.level, log.propagate
    log.propagate = False  # handlers of all loggers, such as absl's, would print them again
    log.setLevel(least)  # the root's may be higher: train hushes orbax
    log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate = before[1]
        log.removeHandler(handler)
