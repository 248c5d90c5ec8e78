"""Captures the package's log messages, to show them to the user."""

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def capture_logs(level: int, show: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with each message of at least this level; no other handler receives them."""
    log = logging.getLogger("flaxformer_lite")
    handler = logging.Handler(level)
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    old_level = log.level
    old_propagate = log.propagate
    old_handlers = log.handlers
    log.propagate = False  # root handlers, such as absl's, would print the messages again
    log.handlers = []  # so would an outer block's
    log.setLevel(level)  # the root's may be higher: train silences orbax
    log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(old_level)
        log.propagate = old_propagate
        log.handlers = old_handlers
