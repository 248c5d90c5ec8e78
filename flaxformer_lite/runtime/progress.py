"""Progress messages: a bar on a terminal, one line elsewhere; both on stderr, to keep stdout clean.

If several processes train together, only the first one prints.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from flaxformer_lite.runtime import processes

MINUTE = 60  # seconds between lines if there is no terminal


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows a spinner."""
    console = Console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what, highlight=False, soft_wrap=True)
        yield


@contextlib.contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` things are done; yields a function that adds to the count."""
    console = Console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if not console.is_terminal:
        yield lambda count: None
        return
    with _bar(console, what, total, MofNCompleteColumn()) as advance:
        yield advance


@contextlib.contextmanager
def reading(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how much of `total` bytes is read; yields a function that adds to the bytes."""
    console = Console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if not console.is_terminal:
        console.print(f"{what}: {total / 1e6:.1f} MB", highlight=False, soft_wrap=True)
        yield _in_lines(console, what, total)
        return
    with _bar(console, what, total, DownloadColumn(), TransferSpeedColumn()) as advance:
        yield advance


@contextlib.contextmanager
def _bar(
    console: Console, what: str, total: int, *columns: ProgressColumn
) -> Iterator[Callable[[int], None]]:
    shown = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
    )
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _in_lines(console: Console, what: str, total: int) -> Callable[[int], None]:
    start = time.monotonic()
    printed = start
    done = 0

    def advance(count: int) -> None:
        nonlocal done, printed
        done += count
        now = time.monotonic()
        if now - printed >= MINUTE:
            printed = now
            speed = f"{done / 1e6 / (now - start):.1f} MB/s"
            console.print(
                f"{what}: {done / 1e6:.1f} MB ({done / total:.0%}), {speed}",
                highlight=False,
                soft_wrap=True,
            )

    return advance
