"""Uploads a run's files to an object store; ends the run if another has taken over its workdir."""

from collections.abc import Callable, Mapping

from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.stores import StorageError


class Upload(Callback):
    """Uploads the files after each evaluation; raises RunError if another run took the lock."""

    def __init__(self, mirror: Mirror, lock: Lock | None, terminal: Terminal):
        self._mirror = mirror
        self._lock = lock
        self._terminal = terminal

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if self._lock is not None:
            self._checked(self._lock.check)

    def evaluated(self, step: int, record: Json) -> None:
        self._checked(self._mirror.send)

    def _checked(self, act: Callable[[], object]) -> None:
        try:
            act()
        except LockError as error:
            raise RunError(str(error)) from None
        except StorageError as error:  # the next checkpoint tries again, and fails if it must
            self._terminal.note(f"notice: {error}")
