"""Workers that run cases within a limit of time; one that hangs, dies or has grown is replaced."""

import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.opponent.case import Case, judge

TURNS = 40  # cases of a worker, as compiled programs and caches grow
MEMORY = 8 << 30  # bytes of addresses that a worker may map


class Result(NamedTuple):
    case: Case
    why: str  # why it is not clear; "" if it is


def run_all(cases: Sequence[Case], package: Path, folder: Path, jobs: int) -> Iterator[Result]:
    """Yields the result of each case, as it ends; workers run in `folder`."""
    waiting = list(reversed(range(len(cases))))
    busy = {}
    while waiting or busy:
        while waiting and len(busy) < jobs:
            worker = _Worker(cases, package, folder)
            worker.give(waiting.pop())
            busy[worker.pipe] = worker
        for pipe in multiprocessing.connection.wait(list(busy), timeout=0.2):
            worker = busy[pipe]
            yield Result(worker.case, worker.outcome())
            if waiting and worker.turns < TURNS and worker.process.is_alive():
                worker.give(waiting.pop())
            else:
                busy.pop(pipe).end()
        for worker in [
            w for w in busy.values() if time.monotonic() > w.deadline and not w.pipe.poll()
        ]:
            busy.pop(worker.pipe).end()
            yield Result(worker.case, f"hangs: no end within {worker.case.limit:.0f} s")


class _Worker:
    def __init__(self, cases: Sequence[Case], package: Path, folder: Path):
        # cases are closures, which only a fork hands over
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=_serve, args=(cases, package, folder, theirs))
        self.process.start()
        theirs.close()
        self._cases = cases
        self.turns = 0

    def give(self, number: int) -> None:
        self.case = self._cases[number]
        self.deadline = time.monotonic() + self.case.limit
        self.turns += 1
        self.pipe.send(number)

    def outcome(self) -> str:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            return f"dies with exit code {self.process.exitcode}"

    def end(self) -> None:
        """Ends the worker and the processes that its case started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()


def _serve(cases: Sequence[Case], package: Path, folder: Path, pipe: Any) -> None:
    os.setsid()
    os.chdir(folder)  # a hostile path may be relative
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for stream in (1, 2):  # libraries in C++ write there
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(_tried(cases[number], package))


def _tried(case: Case, package: Path) -> str:
    printed = io.StringIO()
    arguments = list(sys.argv)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
            case.run()
    except BaseException as error:
        return judge(error, printed.getvalue(), package)
    finally:
        sys.argv[:] = arguments
    return ""
