"""Checkpoints in an object store, written in the background.

The record is written last; a checkpoint without one does not count.

30/state/ocdbt.process_0/...    the shards that each process wrote
30/state/manifest.ocdbt, d/...  references to all of them
30/meta/metadata                the record
30/damaged                      the record of a checkpoint that turned out to be damaged
"""

import concurrent.futures
import json
from collections.abc import Callable
from pathlib import Path

from etils import epath

from flaxformer_lite.checkpoints import arrays
from flaxformer_lite.checkpoints.record import FILE, CheckpointError, committed_steps, first_reason
from flaxformer_lite.files.read import Json
from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.storage.kvstore import explain_errors
from flaxformer_lite.storage.objects import Objects

DAMAGED = "damaged"


class Store:
    """The newest `keep` checkpoints below an address; leftovers of interrupted saves are removed.

    Raises:
      StorageError: the store cannot be reached, or forbids it.
    """

    def __init__(self, url: Path | str, *, keep: int, group: Processes, before: Callable[[], None]):
        self.folder = epath.Path(url)
        self._keep = keep
        self._group = group
        self._before = before
        self._objects = Objects(str(url))
        names = self._objects.names()
        self._steps = committed_steps(names)
        if group.first:
            kept = set(map(str, self._steps))
            kept |= {name.split("/")[0] for name in names if name.endswith(f"/{DAMAGED}")}
            for left in {name.split("/")[0] for name in names} - kept:
                self._objects.below(left).delete_all()
        group.coordinate(f"leftovers in {url}", None, lambda _: None)
        # One thread: processes meet in the parts of a save, which must come in the same order on
        # all.
        self._worker = concurrent.futures.ThreadPoolExecutor(1)
        self._saving: concurrent.futures.Future | None = None

    def check_room(self, state: object) -> str:
        """Returns ""; a store has room."""
        return ""

    def save(self, step: int, state: object, record: Json) -> None:
        """Copies the state to the host and returns; the objects are written in the background."""
        copied = arrays.parts(state, first=self._group.first)
        self._saving = self._worker.submit(self._write, step, copied, record)

    def wait(self) -> None:
        """Waits for the save in the background; raises if it failed."""
        saving = self._saving
        self._saving = None
        if saving:
            saving.result()

    def steps(self) -> list[int]:
        return list(self._steps)

    def at(self, step: int) -> Objects:
        """Returns where a checkpoint is."""
        return self._objects.below(str(step))

    def set_aside(self, step: int) -> str:
        """Quarantines a damaged checkpoint; returns its new location."""
        if self._group.first:
            # Written before the other is deleted, so that an interruption loses no record.
            self._objects.write(f"{step}/{DAMAGED}", self._objects.read(f"{step}/{FILE}") or b"")
            self._objects.delete(f"{step}/{FILE}")
        self._group.coordinate("a damaged checkpoint", None, lambda _: None)
        self._steps.remove(step)
        return f"left in {self.folder / str(step)} without its record"

    def close(self) -> None:
        self._worker.shutdown()

    def _write(self, step: int, copied: dict[str, arrays.HostShards], record: Json) -> None:
        group = self._group
        at = self.at(step)

        def together(what: str, do: Callable[[], object]) -> None:
            """Calls `do` on each process; raises on all of them if it failed on one."""
            why = ""
            try:
                with explain_errors(at.url, content=True):
                    do()
            except Exception as error:
                if group.alone:
                    raise
                why = f"process {group.index}: {error}"
            why = group.coordinate(f"{what} of {self.folder}", why, first_reason)
            if why:
                raise CheckpointError(why)

        def begin() -> None:
            self._before()
            # An interrupted save of this step may have left shards of another layout.
            at.delete_all()

        def commit() -> None:
            arrays.merge(at, group.count)
            self._before()
            at.write(FILE, json.dumps(record).encode())

        def delete_old() -> None:
            # `or None`, as [:0] would keep all where one is kept, and all others are to go.
            for old in sorted({*self._steps} - {step})[: -self._keep + 1 or None]:
                # The record goes first, so that nobody takes a half deleted checkpoint for a whole
                # one.
                self._objects.delete(f"{old}/{FILE}")
                self._objects.below(f"{old}").delete_all()

        first = group.first
        # In this order: the record is written once all shards are, and old checkpoints go last.
        together("the start", lambda: begin() if first else None)
        together("a part", lambda: arrays.write(at, copied, group.index))
        together("the commit", lambda: commit() if first else None)
        kept = sorted({*self._steps, step})[-self._keep :]
        together("the rest", lambda: delete_old() if first else None)
        self._steps = kept
