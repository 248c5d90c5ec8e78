"""Checkpoints: written in the background, verified by content when read, and never silently skipped.

A checkpoint is a train state and a JSON record beside it. The record holds the path, dtype, shape and digest of each
leaf, so that a restore can tell a changed model from a damaged file. Each process writes and reads its own part, and
none continues from a checkpoint that another could not read.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
import tensorstore

from flaxformer_lite.checkpoints.digest import Leaves, describe
from flaxformer_lite.files.read import read_object
from flaxformer_lite.runtime.processes import ALONE, Processes

STATE, RECORD = "state", "meta"  # folders of a checkpoint
SEARCHED = 1 << 30  # bytes of a data file that are searched for a leaf


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says which, why and what to do."""


class Restored(NamedTuple):
    step: int
    state: Any
    meta: dict[str, Any]
    notices: list[str]  # one for each damaged newer checkpoint that was set aside


class Checkpoints(contextlib.AbstractContextManager):
    """The newest `keep` checkpoints of one run, in `folder/<step>`.

    Args:
      folder: created if missing; leftovers of interrupted saves are removed.
      keep: number of checkpoints to keep; older ones are deleted.
      group: the processes that save and restore together.

    Raises:
      CheckpointError: the folder is not writable.
    """

    def __init__(self, folder: Path, *, keep: int, group: Processes = ALONE):
        self.folder, self._group = Path(folder).absolute(), group
        self._saving: int | None = None  # the step that is being, or was last, written
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".writable{group.index}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot write in {folder}: {error.strerror}; choose another --workdir.") from None
        _check_regular(self.folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        # Each process reads by itself: orbax would make all wait for a process with a failed read.
        by_itself = ocp.options.MultiprocessingOptions(
            primary_host=group.index, active_processes={group.index}, barrier_sync_key_prefix=f"read{group.index}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=by_itself)
        self._reader = ocp.Checkpointer(handler, multiprocessing_options=by_itself)

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Copies the state and returns; the files are written in the background.

        Raises:
          CheckpointError: this save, or the one before it in the background, failed.
        """
        need, free = 1.1 * sum(x.nbytes for x in jax.tree.leaves(state)), shutil.disk_usage(self.folder).free
        if free < need:
            raise CheckpointError(f"checkpoint of step {step}: needs {need / 1e6:.1f} MB, {self.folder} has"
                                  f" {free / 1e6:.1f} MB free; free some, lower train.keep, or choose another --workdir."
                                  f" {self._last_good(step)}")  # fmt: skip
        record = sealed({**meta, "step": step, "leaves": describe(state)})
        self.wait()
        self._saving = step
        try:
            items = ocp.args.Composite(**{STATE: ocp.args.StandardSave(state), RECORD: ocp.args.JsonSave(record)})
            self._manager.save(step, args=items, force=True)
        except Exception as error:  # orbax and tensorstore raise many types; after any of them, nothing was written
            raise CheckpointError(self._failed(step, error)) from error

    def restore(self, target: Any, accept: Callable[[dict[str, Any]], None]) -> Restored | None:
        """Restores the newest undamaged checkpoint with the layout of `target`; damaged ones are moved to `damaged/`.

        Args:
          target: tree of ShapeDtypeStructs with shardings.
          accept: called with the record before the state is read; raises to refuse it.

        Returns:
          The restored checkpoint, or None if there is none at all.

        Raises:
          CheckpointError: the leaves differ from the target's, or every checkpoint is damaged.
        """
        damaged: dict[int, str] = {}
        wanted = describe(target)
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in self._group.coordinate("checkpoints", steps, lambda answers: answers[0]):
            at = self.folder / str(step)
            record, damaged[step] = self._all(read_record, at)
            if record is None:
                continue
            try:
                accept(record)
            except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # another kind of record
                damaged[step] = f"its record cannot be read ({type(error).__name__}: {error})"
                continue
            _compare(step, record["leaves"], wanted)
            state, damaged[step] = self._all(self._reader.restore, at / STATE, args=ocp.args.StandardRestore(target))
            if state is None:
                continue
            if broken := broken_leaf(record["leaves"], describe(state)):
                damaged[step] = f"the content of {broken} does not match its digest{_lies_in(at, broken)}"
                continue
            del damaged[step]
            return Restored(step, state, record, [self._set_aside(bad, why, step) for bad, why in damaged.items()])
        if damaged:
            reasons = "; ".join(f"step {step}: {why}" for step, why in damaged.items())
            raise CheckpointError(f"no checkpoint in {self.folder} can be restored ({reasons}); delete the folder to start"
                                  " over, or choose another --workdir.")  # fmt: skip
        return None

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def wait(self) -> None:
        """Waits for the save in the background; raises CheckpointError if it failed."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(self._failed(self._saving, error)) from error

    def close(self) -> None:
        """Waits for the save in the background, which would otherwise be lost at exit; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._manager.close()
            self._reader.close()

    def __exit__(self, kind, *_) -> None:
        # A save waits for all processes, some of which may be gone after an error that not all of them had.
        if self._group.alone or kind is None:
            self.close()

    def _all(self, read: Callable, *arguments: Any, **options: Any) -> tuple[Any, str]:
        """Reads on all processes; returns (result, "") on all, or (None, reason) on all if one of them failed."""
        value, why = None, ""
        try:
            value = read(*arguments, **options)
        except Exception as error:  # from tensorstore, orbax, json or the file system
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            hush_other_reads()
            why = first_line(error)
        why = self._group.coordinate("a checkpoint", why, lambda reasons: next(filter(None, reasons), ""))
        return (None, why) if why else (value, "")

    def _set_aside(self, step: int, why: str, restored: int) -> str:
        place = self.folder / "damaged" / str(step)
        if self._group.first:
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            (self.folder / str(step)).rename(place)
        self._group.coordinate("a damaged checkpoint", None, lambda _: None)
        self._manager.reload()
        return f"checkpoint of step {step} is damaged ({why}); moved to {place}, continuing from step {restored}."

    def _failed(self, step: int | None, error: Exception) -> str:
        last = self._last_good(step)
        return f"checkpoint of step {step} was not written to {self.folder}: {first_line(error)}; {last}"

    def _last_good(self, step: int | None) -> str:
        good = [s for s in self._manager.all_steps() if s != step]
        return f"The last good checkpoint is step {max(good)}." if good else "There is no earlier checkpoint."


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """Adds to the record a digest of itself."""
    plain = json.loads(json.dumps(record))
    return {**plain, "digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read_record(step_folder: Path) -> dict[str, Any]:
    """Reads the record beside a state; raises CheckpointError if it was changed or does not exist."""
    path = step_folder / RECORD / "metadata"
    _check_regular(step_folder)
    record = read_object(path, {"step": int, "leaves": dict}, error=CheckpointError)
    stored = record.pop("digest", None)
    if sealed(record)["digest"] != stored:
        raise CheckpointError(f"{path}: its content does not match its digest")
    if str(record.get("step", step_folder.name)) != step_folder.name:
        raise CheckpointError(f"{path}: it is of step {record['step']}, a copy of another checkpoint")
    if not all(
        isinstance(leaf, list) and list(map(type, leaf)) == [str, list, str] for leaf in record["leaves"].values()
    ):
        raise CheckpointError(f"{path}: its leaves are not described")
    return record


def _check_regular(folder: Path) -> None:
    """Refuses a pipe or device, which orbax would read for ever."""
    for at, _, names in os.walk(folder):  # rglob fails at folders that another process removes meanwhile
        for path in (Path(at, name) for name in names):
            if path.is_fifo() or path.is_char_device():
                raise CheckpointError(f"{path}: is a pipe or a device; remove it, or choose another --workdir.")


def _compare(step: int, stored: Leaves, wanted: Leaves) -> None:
    """Refuses a different tree: orbax would cast dtypes silently, or raise an error about tree structures."""

    def show(leaves, path):
        return f"{leaves[path][0]}{leaves[path][1]}" if path in leaves else "absent"

    changed = [p for p in {**stored, **wanted} if show(stored, p) != show(wanted, p)]
    if changed:
        lines = [f"{path}: {show(stored, path)} -> {show(wanted, path)}" for path in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise CheckpointError(f"checkpoint of step {step} has other leaves than this model: {'; '.join(lines)}{more}. Choose"
                              " another --workdir, or the version of the code that wrote it.")  # fmt: skip


def broken_leaf(stored: Leaves, read: Leaves) -> str:
    """Returns the path of a leaf that was read with different content than was stored, or ""."""
    return next((path for path, leaf in read.items() if leaf != stored[path]), "")


def _lies_in(step_folder: Path, leaf: str) -> str:
    """Names the files that hold a leaf, by searching for its bytes, as the store keeps no list of them."""
    folder = step_folder / STATE
    files = [p for p in folder.rglob("d/*") if p.stat().st_size <= SEARCHED]
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    prefix = f"{leaf.replace('/', '.')}/".encode()
    pieces = [store.read(key).result().value for key in store.list().result() if key.startswith(prefix)]
    holds = [p for p in files if any(piece in p.read_bytes() for piece in pieces if not piece.startswith(b"{"))]
    return f"; it lies in {', '.join(str(p.relative_to(step_folder)) for p in holds)}" if holds else ""


def hush_other_reads() -> None:
    """Silences the reads that orbax abandons when another one fails, which complain later or when collected."""
    warnings.filterwarnings("ignore", "coroutine '_read_.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        abandoned = getattr(unraisable.object, "__name__", "").startswith("_read_")
        if not abandoned and "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook


def first_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # orbax wraps tensorstore's error, which names the leaf and the file
        error = error.__cause__
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 240 else f"{line[:110]} ... {line[-120:]}"  # the cause comes last
