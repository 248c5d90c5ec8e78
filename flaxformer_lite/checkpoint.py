"""Checkpoints: written in the background, verified by content when read, and never silently skipped.

A checkpoint is a train state and a JSON record beside it. The record holds, for each leaf, its path, dtype, shape and
SHA-256, so that a restore can tell a model that changed from a file that broke.
"""

import hashlib
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from flaxformer_lite.training.state import path_of

Leaves = dict[str, list]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says which, why and what to do."""


class Restored(NamedTuple):
    step: int
    state: Any
    meta: dict[str, Any]
    notices: list[str]  # one for each newer checkpoint that was damaged and set aside


class Checkpoints:
    """The newest `keep` checkpoints of one run, in `folder/<step>`.

    Args:
      folder: made if missing; leftovers of saves that were killed are swept.
      keep: older checkpoints are deleted beyond this many.

    Raises:
      CheckpointError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, keep: int):
        self.folder = Path(folder).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot write in {folder}: {error.strerror}; choose another --workdir.") from None
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=True, cleanup_tmp_directories=True
            ),
        )

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Copies the state and returns; the files follow in the background.

        Raises:
          CheckpointError: this save, or the one before it in the background, failed.
        """
        need, free = 1.1 * byte_count(state), shutil.disk_usage(self.folder).free
        if free < need:
            raise CheckpointError(
                f"checkpoint of step {step}: needs {need / 1e6:.1f} MB, {self.folder} has {free / 1e6:.1f} MB"
                f" free; free some, lower train.keep, or choose another --workdir. {self._last_good(step)}"
            )
        record = {**meta, "leaves": describe(state)}
        try:
            self._manager.check_for_errors()
            items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(record))
            self._manager.save(step, args=items, force=True)
        except Exception as error:  # orbax and tensorstore raise many types; all mean that nothing was written
            raise CheckpointError(self._failed(step, error)) from error

    def restore(self, target: Any, accept: Callable[[dict[str, Any]], None]) -> Restored | None:
        """The newest checkpoint that is whole, laid out as `target` says; damaged newer ones are moved to `damaged/`.

        Args:
          target: tree of ShapeDtypeStructs with shardings.
          accept: called with the record before the state is read; raises to refuse it.

        Returns:
          None where there is no checkpoint at all.

        Raises:
          CheckpointError: the leaves differ from the target's, or every checkpoint is damaged.
        """
        damaged: dict[int, str] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            meta, damaged[step] = self._read(step, "meta", ocp.args.JsonRestore())
            if meta is None:
                continue
            accept(meta)
            _compare(step, meta["leaves"], describe(target))
            state, damaged[step] = self._read(step, "state", ocp.args.StandardRestore(target))
            if state is None:
                continue
            if broken := _broken_leaf(meta["leaves"], describe(state)):
                damaged[step] = f"the content of {broken} does not match its SHA-256"
                continue
            del damaged[step]
            return Restored(step, state, meta, [self._set_aside(bad, why, step) for bad, why in damaged.items()])
        if damaged:
            reasons = "; ".join(f"step {step}: {why}" for step, why in damaged.items())
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be restored ({reasons}); delete the folder to start"
                f" afresh, or choose another --workdir."
            )
        return None

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def close(self) -> None:
        """Waits for the background; without it the last save would be lost at exit.

        Raises:
          CheckpointError: the save in the background failed.
        """
        step = self.latest_step
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(self._failed(step, error)) from error
        finally:
            self._manager.close()

    def _read(self, step: int, item: str, args: Any) -> tuple[Any, str]:
        """(the item, "") or (None, why it cannot be read)."""
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**{item: args}))[item], ""
        except Exception as error:  # the types are tensorstore's, orbax's, json's and the file system's
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            hush_other_reads()
            return None, _first_line(error)

    def _set_aside(self, step: int, why: str, restored: int) -> str:
        place = self.folder / "damaged" / str(step)
        place.parent.mkdir(exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        (self.folder / str(step)).rename(place)
        self._manager.reload()
        return f"checkpoint of step {step} is damaged ({why}); moved to {place}, continuing from step {restored}."

    def _failed(self, step: int | None, error: Exception) -> str:
        return (
            f"checkpoint of step {step} was not written to {self.folder}: {_first_line(error)}; {self._last_good(step)}"
        )

    def _last_good(self, step: int | None) -> str:
        good = [s for s in self._manager.all_steps() if s != step]
        return f"The last good checkpoint is step {max(good)}." if good else "There is no earlier checkpoint."


def describe(tree: Any) -> Leaves:
    """Path -> [dtype, shape, SHA-256] of each leaf; the hash is empty where the leaf's content is not all at hand."""

    def content(leaf):
        if not isinstance(leaf, (jax.Array, np.ndarray)) or not getattr(leaf, "is_fully_addressable", True):
            return ""
        return hashlib.sha256(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)).hexdigest()

    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {path_of(keys): [str(leaf.dtype), list(leaf.shape), content(leaf)] for keys, leaf in paths}


def digest(tree: Any) -> str:
    """One SHA-256 over all leaves: equal exactly when two trees are equal bit for bit."""
    return hashlib.sha256(repr(sorted(describe(tree).items())).encode()).hexdigest()


def byte_count(tree: Any) -> int:
    """Bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _compare(step: int, stored: Leaves, wanted: Leaves) -> None:
    """Refuses another tree: orbax would cast dtypes silently and speak of tree structures."""

    def show(leaves, path):
        return f"{leaves[path][0]}{leaves[path][1]}" if path in leaves else "absent"

    changed = [p for p in {**stored, **wanted} if show(stored, p) != show(wanted, p)]
    if changed:
        lines = [f"{path}: {show(stored, path)} -> {show(wanted, path)}" for path in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise CheckpointError(
            f"checkpoint of step {step} has other leaves than this model: {'; '.join(lines)}{more}. Choose"
            f" another --workdir, or the version of the code that wrote it."
        )


def _broken_leaf(stored: Leaves, read: Leaves) -> str:
    """The path of a leaf whose content is not what was stored, or ""."""
    return next(
        (path for path, (_, _, content) in stored.items() if content and read[path][2] not in ("", content)), ""
    )


def hush_other_reads() -> None:
    """Orbax abandons the reads beside one that failed; they complain later, to a closed loop or when collected."""
    warnings.filterwarnings("ignore", "coroutine '_read_.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        abandoned = getattr(unraisable.object, "__name__", "").startswith("_read_")
        if not abandoned and "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # orbax wraps what tensorstore says, which names the leaf and the file
        error = error.__cause__
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 240 else f"{line[:110]} ... {line[-120:]}"  # the cause stands at the end
