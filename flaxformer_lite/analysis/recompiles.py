"""Counts XLA compilations: a training loop that still compiles after its second step is losing its time."""

import collections
import contextlib
import functools
import threading
from collections.abc import Iterator

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


class RecompileCounter:
    """Counts the compilations of its thread from `start()` on, less those of work that is done for the first time.

    Those that other threads do ahead of need (`training/start/precompile.py`) may end at any step, and nothing waits for them.
    """

    def __init__(self):
        self._begin: int | None = None
        self._excused, self._seen = 0, set()

    def start(self) -> None:
        self._begin, self._excused = _here(), 0

    @contextlib.contextmanager
    def allow_first(self, work: str) -> Iterator[None]:
        """The first block of this name may compile; later ones are counted."""
        before = _here()
        yield
        if work not in self._seen:
            self._seen.add(work)
            self._excused += _here() - before

    @property
    def count(self) -> int:
        return 0 if self._begin is None else _here() - self._begin - self._excused


def total() -> int:
    """Compilations of this process since the first call of this function."""
    return sum(list(_counts().values()))  # a copy: another thread may begin to count meanwhile


def _here() -> int:
    return _counts()[threading.get_ident()]


@functools.cache
def _counts() -> collections.Counter[int]:
    """Compilations of each thread."""
    counts: collections.Counter[int] = collections.Counter()

    def listen(event: str, *_args, **_kwargs) -> None:
        counts[threading.get_ident()] += event == EVENT

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counts
