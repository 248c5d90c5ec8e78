"""Progress messages: a bar on a terminal, one line elsewhere; both on stderr, to keep stdout clean.

If several processes train together, only the first one prints.
"""

import contextlib
import html
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

LINE_SECONDS = 60  # seconds between lines if there is no terminal


def in_notebook() -> bool:
    """Returns whether the cell of a notebook shows what is printed."""
    return Console().is_jupyter


def show_frame(page: str, *, height: int) -> None:
    """Shows an HTML page below the cell of a notebook, in a frame that shares no style with it.

    Args:
      page: the whole page.
      height: of the frame, in pixels.
    """
    from IPython.display import HTML, display

    style = f"border:0;width:100%;height:{height}px"
    display(HTML(f'<iframe srcdoc="{html.escape(page)}" style="{style}"></iframe>'))


def make_console(
    *, quiet: bool, stderr: bool = False, markup: bool = True, soft_wrap: bool = False
) -> Console:
    """Returns a console that writes plain text in a notebook.

    By itself rich makes an output of each line there, and Jupyter asks for colors by FORCE_COLOR.
    """
    is_terminal = None  # to be found out
    if in_notebook():
        is_terminal = False
    return Console(
        quiet=quiet,
        stderr=stderr,
        markup=markup,
        soft_wrap=soft_wrap,
        highlight=False,
        force_jupyter=False,
        force_terminal=is_terminal,
    )


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows a spinner."""
    console = make_console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what, soft_wrap=True)
        yield


@contextlib.contextmanager
def count_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` things are done; yields a function that adds to the count."""
    console = make_console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if not console.is_terminal:
        yield lambda count: None
        return
    with _bar(console, what, total, MofNCompleteColumn()) as advance:
        yield advance


@contextlib.contextmanager
def read_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how much of `total` bytes is read; yields a function that adds to the bytes."""
    console = make_console(stderr=True, quiet=not processes.is_main_process(), markup=False)
    if not console.is_terminal:
        console.print(f"{what}: {total / 1e6:.1f} MB", soft_wrap=True)
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
        if now - printed >= LINE_SECONDS:
            printed = now
            speed = f"{done / 1e6 / (now - start):.1f} MB/s"
            console.print(
                f"{what}: {done / 1e6:.1f} MB ({done / total:.0%}), {speed}",
                soft_wrap=True,
            )

    return advance
