"""Handles SIGTERM, SIGHUP and ctrl-C, the signals that end a run, in a thread of their own.

A signal handler that raises would not do: the exception is lost where Python ignores exceptions, as
in a callback of the garbage collector, and comes late while the main thread is inside a library.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from flaxformer_lite.runtime.processes import ALONE, Processes

TOPIC = "stop"


class Interrupt(contextlib.AbstractContextManager):
    """Handles signals within a block; enter it in the main thread.

    Within `training` the first signal is recorded, on all processes, and ends the run after a step.
    Elsewhere, and the second time, it ends the process. While another library owns Python's wakeup
    file in the main thread, as uvloop does, signals are lost.

    Args:
      end: ends the process because of a signal; called in the other thread.

    Attributes:
      caught: "SIGTERM", "SIGHUP" or "SIGINT" once any process has received a signal while training,
        else "".
      by: the number of that process.
    """

    def __init__(
        self, end: Callable[[signal.Signals], None] = lambda number: os._exit(128 + number)
    ):
        self._end = end
        self._group = ALONE
        self._step = 0
        self._training = False
        self._stopping = False
        self._last: int | None = None
        self._lock = threading.Lock()
        self.caught = ""
        self.by = 0

    def __enter__(self) -> "Interrupt":
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            handled.append(signal.SIGHUP)
        self._before = {number: signal.getsignal(number) for number in handled}
        self._terminals = _terminals()
        self._pipe_out, self._pipe_in = os.pipe()
        # Python requires it of a wakeup file.
        os.set_blocking(self._pipe_in, False)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        # Before the handlers, or a signal in between would be lost.
        self._wakeup = signal.set_wakeup_fd(self._pipe_in)
        for number in self._before:
            # Without a handler of Python's, the wakeup file gets nothing.
            signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # one from C, which Python cannot put back
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe_in)
        self._thread.join()
        os.close(self._pipe_out)

    @contextlib.contextmanager
    def training(self, start: int, group: Processes = ALONE) -> Iterator[None]:
        """Lets the first signal within the block end the run after a step, on all processes.

        Args:
          start: number of steps already done.
          group: the processes.
        """
        self._group = group  # joining others moves stderr
        self._step = start
        self._terminals = _terminals()
        group.listen(TOPIC, self._agree)
        self._training = True
        try:
            yield
        finally:
            self._training = False

    def after(self, step: int) -> bool:
        """Returns whether the run ends after this step; call it once after each step."""
        with self._lock:
            self._step = step
            return self._last is not None and step >= self._last

    def _receive(self) -> None:
        while received := os.read(self._pipe_out, 1):
            if received[0] not in self._before:
                continue
            number = signal.Signals(received[0])
            if number == signal.SIGHUP:  # the terminal is gone; writing to it would fail
                for terminal in self._terminals:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
            if not self._training or self._stopping:
                self._end(number)
                continue
            self._stopping = True
            line = f"\n{number.name}: stopping after this step; once more stops at once.\n"
            with contextlib.suppress(OSError):  # nobody may read stderr
                os.write(_stderr(), line.encode())
            if self._group.alone:
                self.caught = number.name
                self._last = 0
            else:
                self._group.announce(TOPIC, json.dumps([self._group.index, number.name]))

    def _agree(self, news: str) -> None:
        """Agrees on the last step with the other processes.

        It runs in a thread, even while the main one waits for a device. No process passes its next
        `after` until all agree; they stop one step after the latest that any has passed.
        """
        with self._lock:
            self._last = self._group.coordinate(TOPIC, self._step, max) + 1
            self.by, self.caught = json.loads(news)


def _stderr() -> int:
    """Returns the file descriptor of stderr; in multi-process runs it is not 2."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # stderr is no file, or closed
        return 2


def _terminals() -> list[int]:
    return [number for number in {1, 2, _stderr()} if os.isatty(number)]
