"""Checkpoints on a disk, by orbax: written in the background, each named only when it is whole."""

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from flaxformer_lite.checkpoints import arrays
from flaxformer_lite.checkpoints.record import RECORD, STATE, CheckpointError, check_regular, read_record
from flaxformer_lite.runtime.processes import Processes

SEARCHED = 1 << 30  # bytes of a data file that are searched for a leaf


class Disk:
    """The newest `keep` checkpoints in `folder/<step>`; leftovers of interrupted saves are removed.

    Raises:
      CheckpointError: the folder is not writable.
    """

    def __init__(self, folder: Path, *, keep: int, group: Processes):
        self.folder, self._group = Path(folder).absolute(), group
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".writable{group.index}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot write in {folder}: {error.strerror}; choose another --workdir.") from None
        check_regular(self.folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        # Each process reads by itself: orbax would make all wait for a process with a failed read.
        by_itself = ocp.options.MultiprocessingOptions(
            primary_host=group.index, active_processes={group.index}, barrier_sync_key_prefix=f"read{group.index}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=by_itself)
        self._reader = ocp.Checkpointer(handler, multiprocessing_options=by_itself)

    def check_room(self, state: Any) -> str:
        """Returns what is wrong if the state does not fit on the disk."""
        need, free = 1.1 * sum(x.nbytes for x in jax.tree.leaves(state)), shutil.disk_usage(self.folder).free
        if free >= need:
            return ""
        return (f"needs {need / 1e6:.1f} MB, {self.folder} has {free / 1e6:.1f} MB free; free some, lower train.keep, or"
                " choose another --workdir.")  # fmt: skip

    def save(self, step: int, state: Any, record: dict[str, Any]) -> None:
        """Copies the state and returns; the files are written in the background."""
        items = ocp.args.Composite(**{STATE: ocp.args.StandardSave(state), RECORD: ocp.args.JsonSave(record)})
        self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Waits for the save in the background; raises if it failed."""
        self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        return list(self._manager.all_steps())

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def record(self, step: int) -> dict[str, Any]:
        return read_record(self.folder / str(step))

    def state(self, step: int, target: Any) -> Any:
        """Reads this process's part of a state."""
        at = self.folder / str(step)
        if is_copied(at):
            return arrays.read(at, target)
        return self._reader.restore(at / STATE, args=ocp.args.StandardRestore(target))

    def lies_in(self, step: int, leaf: str) -> list[str]:
        """Names the files that hold a leaf, by searching for its bytes, as the store keeps no list of them."""
        at = self.folder / str(step)
        files = [p for p in (at / STATE).rglob("d/*") if p.stat().st_size <= SEARCHED]
        wanted = arrays.stored(at, leaf)
        return [str(p.relative_to(at)) for p in files if any(piece in p.read_bytes() for piece in wanted)]

    def set_aside(self, step: int) -> str:
        """Takes a damaged checkpoint from the others; says where it is then."""
        place = self.folder / "damaged" / str(step)
        if self._group.first:
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            (self.folder / str(step)).rename(place)
        self._group.coordinate("a damaged checkpoint", None, lambda _: None)
        self._manager.reload()
        return f"moved to {place}"

    def close(self) -> None:
        self._manager.close()
        self._reader.close()


def is_copied(step_folder: Path) -> bool:
    """Returns whether a checkpoint was copied here from an object store, and lacks what orbax needs to read it."""
    return not (step_folder / STATE / "_METADATA").exists() and (step_folder / STATE / "manifest.ocdbt").exists()


def hush_other_reads() -> None:
    """Silences the reads that orbax abandons when another one fails, which complain later or when collected."""
    warnings.filterwarnings("ignore", "coroutine '_read_.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        abandoned = getattr(unraisable.object, "__name__", "").startswith("_read_")
        if not abandoned and "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook
