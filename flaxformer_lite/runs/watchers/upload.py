"""Sends a run's files to an object store, and ends the run if its workdir is another's by now."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.runs.start.preflight import RunError
from flaxformer_lite.runs.watchers.watcher import Watcher
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.stores import StorageError


class Upload(Watcher):
    """Sends the files after each evaluation; raises RunError once another run has taken the lock
    over."""

    def __init__(self, mirror: Mirror, lock: Lock | None, terminal: Terminal):
        self._mirror = mirror
        self._lock = lock
        self._terminal = terminal

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if self._lock is not None:
            self._checked(self._lock.check)

    def evaluated(self, step: int, record: Mapping[str, Any]) -> None:
        self._checked(self._mirror.send)

    def _checked(self, act: Any) -> None:
        try:
            act()
        except LockError as error:
            raise RunError(str(error)) from None
        except StorageError as error:  # all goes with the next checkpoint, or ends the run there
            self._terminal.note(f"notice: {error}")
