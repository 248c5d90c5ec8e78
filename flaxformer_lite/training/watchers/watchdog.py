"""Prints what all threads of all processes are doing when no step ends for a long time."""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.training.report.clock import STEPPING, Clock
from flaxformer_lite.training.watchers.watcher import Watcher

TOPIC = "stacks"
LOOKS = 10.0  # most seconds between two looks at the clock


class Watchdog(Watcher):
    """Looks, in a thread of its own, whether steps end; once for each step that does not in time,
    it prints all stacks.

    Compilations, evaluations and checkpoints may take as long as they want. The run itself goes on.

    Args:
      minutes: how long a step may take.
      workdir: gets stacks-0.txt from process 0, and so on.
      group: the processes; one that prints its stacks makes all others print theirs.
    """

    def __init__(self, minutes: float, workdir: Path, group: Processes, clock: Clock):
        self._limit = 60 * minutes
        self._group = group
        self._clock = clock
        self._path = workdir / f"stacks-{group.index}.txt"
        self._step = 0
        self._since = time.monotonic()
        self._told = False
        self._reports = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        group.listen(f"{TOPIC}0", self._hear)
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        self._step = step
        self._since = time.monotonic()
        self._told = False

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closing.wait(min(max(self._limit / 10, LOOKS / 1000), LOOKS)):
            if self._clock.doing not in STEPPING:
                self._since = time.monotonic()
            elif time.monotonic() - self._since > self._limit and not self._told:
                what = (
                    "which waits for data" if self._clock.doing == "data" else "which is in a step"
                )
                news = (
                    f"no step has ended for {self._limit / 60:.3g} minutes on process"
                    f" {self._group.index}, {what}"
                )
                report = self._reports
                self._report(report, news)
                self._group.announce(f"{TOPIC}{report}", json.dumps([report, news]))

    def _hear(self, announced: str) -> None:
        report, news = json.loads(announced)
        self._report(report, news)
        self._group.listen(f"{TOPIC}{report + 1}", self._hear)

    def _report(self, report: int, news: str) -> None:
        """Prints and writes the stacks, once for each number of a report."""
        with self._lock:
            if report < self._reports:
                return
            self._reports = report + 1
            self._told = True
        last = f"the last that has ended is step {self._step}"
        said = f"{news}; {last}. Stacks of process {self._group.index}:\n{stacks()}"
        with contextlib.suppress(
            OSError, AttributeError, ValueError
        ):  # of a stderr that nobody reads, or that was closed
            os.write(sys.stderr.fileno(), f"\n{said}\n".encode(errors="replace"))
        with contextlib.suppress(OSError):  # of a disk that is full, or does not answer
            earlier = self._path.read_text() if self._path.exists() else ""
            self._path.write_text(f"{earlier}{time.strftime('%Y-%m-%d %H:%M:%S %Z')}: {said}\n")


def stacks() -> str:
    """Returns what each thread is doing, the innermost call last; the main thread comes first."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()
    main = threading.main_thread().ident
    texts = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        name = threads[ident].name if ident in threads else f"{ident}"
        texts.append(f"thread {name}:\n{''.join(traceback.format_stack(frames[ident]))}")
    return "\n".join(texts)
