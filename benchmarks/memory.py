"""Memory of processes, as Linux counts it."""

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
EVERY = 0.2  # seconds between two looks at other processes


def peak() -> int:
    """Returns the most bytes that this process has held since it started, or since `forget`."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", (PROC / "self/status").read_text())[1]) * 1024


def forget() -> None:
    """Resets `peak` to what is held now."""
    (PROC / "self/clear_refs").write_text("5")


def trim() -> None:
    """Returns freed memory in the C library's pools to the system, so that it does not count for
    the next step.

    Does the same as `release_free_memory` of runtime/environment.py, which other peers'
    interpreters may lack.
    """
    ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def workers(process: int) -> Iterator[list[int]]:
    """Records the total bytes of a process's descendants (a compiler's workers), one entry per look
    within the block.

    Mapped files do not count; pages shared by a fork count in each process.
    """
    looks = [0]
    done = threading.Event()

    def look() -> None:
        while not done.wait(EVERY):
            looks.append(sum(map(_own, _descendants(process))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        done.set()
        thread.join()


def _descendants(process: int) -> list[int]:
    children = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    found = []
    todo = [process]
    while todo:
        found += (more := children.get(todo.pop(), []))
        todo += more
    return found


def _own(process: int) -> int:
    with contextlib.suppress(OSError):
        resident, shared = map(int, (PROC / str(process) / "statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0
