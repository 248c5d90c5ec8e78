"""Counts XLA compilations: a training loop should not compile after its second step."""

import collections
import contextlib
import functools
import threading
from collections.abc import Iterator

import jax

from flaxformer_lite.first_model import COMPILED


class RecompileCounter:
    """Counts the compilations of its thread from `start()` on, except for work that is new."""

    def __init__(self):
        self._begin: int | None = None
        self._excused = 0
        self._seen = set()

    def start(self) -> None:
        self._begin = _here()
        self._excused = 0

    @contextlib.contextmanager
    def allow_first(self, work: str) -> Iterator[None]:
        """Lets the first block with this name compile; compilations in later ones are counted."""
        before = _here()
        yield
        if work not in self._seen:
            self._seen.add(work)
            self._excused += _here() - before

    @property
    def count(self) -> int:
        return 0 if self._begin is None else _here() - self._begin - self._excused


def total() -> int:
    """Returns the number of compilations in this process since the first call of this function."""
    return sum(list(_counts().values()))  # a copy, as another thread may start counting meanwhile


def _here() -> int:
    return _counts()[threading.get_ident()]


@functools.cache
def _counts() -> collections.Counter[int]:
    """Returns the number of compilations per thread."""
    counts: collections.Counter[int] = collections.Counter()

    def listen(event: str, *_args, **_kwargs) -> None:
        counts[threading.get_ident()] += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counts
