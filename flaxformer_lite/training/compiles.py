"""Counts XLA compilations: a training loop that still compiles after its second step is losing its time."""

import contextlib
import functools
from collections.abc import Iterator

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


class Watch:
    """Counts the compilations from `start()` on, less those of work that is done for the first time."""

    def __init__(self):
        self._begin: int | None = None
        self._excused, self._seen = 0, set()

    def start(self) -> None:
        self._begin, self._excused = total(), 0

    @contextlib.contextmanager
    def first(self, work: str) -> Iterator[None]:
        """The first block of this name may compile; later ones are counted."""
        before = total()
        yield
        if work not in self._seen:
            self._seen.add(work)
            self._excused += total() - before

    @property
    def late(self) -> int:
        return 0 if self._begin is None else total() - self._begin - self._excused


def total() -> int:
    """Compilations of this process since the first call of this function."""
    return _counter()[0]


@functools.cache
def _counter() -> list[int]:
    count = [0]

    def listen(event: str, *_args, **_kwargs) -> None:
        count[0] += event == EVENT

    jax.monitoring.register_event_duration_secs_listener(listen)
    return count
