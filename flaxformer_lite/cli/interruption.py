"""Ctrl-C ends a command, wherever it is."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

GRACE = 3.0  # seconds that a command has to clean up
IMPORTS = "<frozen importlib"
INTERRUPTED = "error: interrupted.\n"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ends the process because of SIGINT, though the block may lose the KeyboardInterrupt.

    The exception is lost where Python ignores exceptions, as in a callback of the garbage
    collector, or where a library catches all of them; it comes late while native code runs; and
    native modules crash where it ends their import. So the process ends at once during an import
    and at the second signal, and otherwise, if the block still runs, after `GRACE` seconds.

    Does nothing outside the main thread, or where SIGINT is ignored, as under nohup.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received, tell = os.pipe()
    os.set_blocking(tell, False)
    done = threading.Event()
    thread = threading.Thread(target=_end_late, args=(received, done), daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _Handler())
    try:
        yield
    finally:
        done.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(wakeup)
        os.close(tell)
        thread.join()
        os.close(received)


class _Handler:
    """Raises KeyboardInterrupt once, where that is safe."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if self._asked or _imports(frame):
            _end()
        self._asked = True
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Returns whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTS):
            return True
        frame = frame.f_back
    return False


def _end_late(received: int, done: threading.Event) -> None:
    """Waits for SIGINT, in a thread, and ends a process that is still busy some time after it."""
    while number := os.read(received, 1):
        if number[0] == signal.SIGINT and not done.wait(GRACE):
            _end()


def _end() -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # of a stderr that is closed
        os.write(sys.stderr.fileno(), INTERRUPTED.encode())
    os._exit(128 + signal.SIGINT)
