"""Ends a command on Ctrl-C, even where Python would lose the KeyboardInterrupt."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

GRACE_SECONDS = 3.0  # seconds that a command has to clean up
IMPORTS = "<frozen importlib"
INTERRUPTED = "error: interrupted.\n"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ends the process on SIGINT, even if the block loses the KeyboardInterrupt.

    The exception is lost where Python ignores exceptions, as in a callback of the garbage
    collector, or where a library catches all of them; it is delayed while native code runs; and
    native modules crash if it is raised during their import. So the process ends at once during an
    import and on the second signal, and otherwise after `GRACE_SECONDS` if the block still runs.

    Does nothing outside the main thread, or if SIGINT is ignored, as under nohup.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received, sender = os.pipe()
    os.set_blocking(sender, False)
    done = threading.Event()
    thread = threading.Thread(target=_end_late, args=(received, done), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _Handler())
    try:
        yield
    finally:
        done.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(wakeup)
        os.close(sender)
        thread.join()
        os.close(received)


class _Handler:
    """Raises KeyboardInterrupt on the first signal; ends the process on the second."""

    def __init__(self) -> None:
        self._interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if self._interrupted or _is_importing(frame):
            _end()
        self._interrupted = True
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Returns whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTS):
            return True
        frame = frame.f_back
    return False


def _end_late(received: int, done: threading.Event) -> None:
    """Waits for SIGINT in a thread, and ends the process if it runs on for `GRACE_SECONDS`."""
    while number := os.read(received, 1):
        if number[0] == signal.SIGINT and not done.wait(GRACE_SECONDS):
            _end()


def _end() -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        os.write(sys.stderr.fileno(), INTERRUPTED.encode())
    os._exit(128 + signal.SIGINT)
