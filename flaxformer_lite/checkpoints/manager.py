"""Saves checkpoints in the background, and verifies them when they are restored.

A checkpoint is a train state and a JSON record beside it. The record holds the path, dtype, shape
and digest of each leaf, so that a restore can distinguish a changed model from a damaged file. Each
process writes and reads its own part. All processes restore the same checkpoint, the newest one
that every process can read, and damaged ones are reported.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flaxformer_lite.checkpoints import arrays
from flaxformer_lite.checkpoints.digest import describe_leaves
from flaxformer_lite.checkpoints.disk import Disk
from flaxformer_lite.checkpoints.record import (
    CheckpointError,
    Restored,
    UnreadableError,
    broken_leaf,
    compare_leaves,
    first_line,
    first_reason,
    read_record,
    seal_record,
)
from flaxformer_lite.checkpoints.store import Store
from flaxformer_lite.files.read import Json
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.storage import objects
from flaxformer_lite.storage.stores import StorageError, is_url


class Checkpoints(contextlib.AbstractContextManager):
    """The newest `keep` checkpoints of one run, in `folder/<step>`.

    Args:
      folder: created if missing; leftovers of interrupted saves are removed.
      keep: number of checkpoints to keep; older ones are deleted.
      group: the processes that save and restore together.
      before: for object stores, a function that process 0 calls in the background before it begins
        and before it commits a checkpoint.

    Raises:
      CheckpointError: the folder is not writable.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int,
        group: Processes = ALONE,
        before: Callable[[], None] = lambda: None,
    ):
        self._group = group
        self._saving: int | None = None  # the step that is being written, or was written last
        self._storage: Store | Disk
        if is_url(folder):
            self._storage = Store(folder, keep=keep, group=group, before=before)
        else:
            self._storage = Disk(Path(folder), keep=keep, group=group)
        self.folder = self._storage.folder

    def save(self, step: int, state: object, meta: Json) -> None:
        """Copies the state and returns; the files are written in the background.

        Raises:
          CheckpointError: this save, or the one before it in the background, failed.
        """
        problem = self._storage.check_room(state)
        if problem:
            raise CheckpointError(f"checkpoint of step {step}: {problem} {self._last_good(step)}")
        # Before the wait, so that digests are computed while the save before this one is still
        # written.
        record = seal_record({**meta, "step": step, "leaves": describe_leaves(state)})
        self.wait()
        self._saving = step
        try:
            self._storage.save(step, state, record)
        except Exception as error:  # orbax and tensorstore raise many types; nothing was written
            raise CheckpointError(self._failed(step, error)) from error

    def restore(self, choose_target: Callable[[Json], Any]) -> Restored | None:
        """Restores the newest undamaged checkpoint, and moves damaged ones to `damaged/`.

        Args:
          choose_target: function that is called with the record before the state is read. Returns
            the tree of ShapeDtypeStructs with shardings that the state must match, or raises to
            reject it.

        Returns:
          The restored checkpoint, or None if there is none at all.

        Raises:
          UnreadableError: the system does not let a process read one; nothing is moved.
          CheckpointError: the leaves differ from the target's, or every checkpoint is damaged.
        """
        damaged: dict[int, str] = {}
        steps = sorted(self._storage.steps(), reverse=True)
        for step in self._group.coordinate("checkpoints", steps, lambda answers: answers[0]):
            at = self._storage.at(step)
            record, damaged[step] = self._on_all_processes(read_record, at)
            if record is None:
                continue
            try:
                target = choose_target(record)
            except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
                # It did not find what every record holds.
                damaged[step] = f"its record cannot be read ({type(error).__name__}: {error})"
                continue
            compare_leaves(step, record["leaves"], describe_leaves(target))
            state, damaged[step] = self._on_all_processes(arrays.read, at, target)
            if state is None:
                continue
            broken = broken_leaf(record["leaves"], describe_leaves(state))
            if broken:
                where = _lies_in(at, broken)
                damaged[step] = f"the content of {broken} does not match its digest{where}"
                continue
            del damaged[step]
            notices = [self._set_aside(bad, why, step) for bad, why in damaged.items()]
            return Restored(step, state, record, notices)
        if damaged:
            reasons = "; ".join(f"step {step}: {why}" for step, why in damaged.items())
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be restored ({reasons}); delete the folder to"
                " start over, or choose another --workdir."
            )
        return None

    @property
    def latest_step(self) -> int | None:
        return max(self._storage.steps(), default=None)

    def wait(self) -> None:
        """Waits for the save in the background; raises CheckpointError if it failed."""
        try:
            self._storage.wait()
        except Exception as error:
            raise CheckpointError(self._failed(self._saving, error)) from error

    def close(self) -> None:
        """Waits for the save in the background, which exiting would interrupt.

        Raises:
          CheckpointError: the save failed.
        """
        try:
            self.wait()
        finally:
            self._storage.close()

    def __exit__(self, kind, *_) -> None:
        # A save waits for all processes; after an error in some of them, that may be forever.
        if self._group.alone or kind is None:
            self.close()

    def _on_all_processes(self, read: Callable, *arguments: object) -> tuple[Any, str]:
        """Calls `read` on all processes.

        Returns:
          (result, "") on all processes, or (None, reason) on all of them if any failed.
        """
        value = None
        why = ""
        try:
            value = read(*arguments)
        # Neither means damage: to set the checkpoint aside would lose a sound one.
        except (StorageError, UnreadableError):
            raise
        except Exception as error:  # from tensorstore, orbax, json or the file system
            # Full memory of a device says nothing of the file.
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            why = first_line(error)
        why = self._group.coordinate("a checkpoint", why, first_reason)
        if why:
            return None, why
        return value, ""

    def _set_aside(self, step: int, why: str, restored: int) -> str:
        now = self._storage.set_aside(step)
        return (
            f"checkpoint of step {step} is damaged ({why}); {now}, continuing from step {restored}."
        )

    def _failed(self, step: int | None, error: Exception) -> str:
        what = f"checkpoint of step {step} was not written to {self.folder}: {first_line(error)}"
        return f"{what}; {self._last_good(step)}"

    def _last_good(self, step: int | None) -> str:
        good = [s for s in self._storage.steps() if s != step]
        if not good:
            return "There is no earlier checkpoint."
        return f"The last good checkpoint is step {max(good)}."


def _lies_in(at: Path | objects.Objects, leaf: str) -> str:
    """Returns the end of a message that names the files of a leaf; "" if they are unknown."""
    files = arrays.lies_in(at, leaf)
    if not files:
        return ""
    return f"; it lies in {', '.join(files)}"
