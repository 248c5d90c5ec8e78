"""Checkpoints on a disk, by orbax: written in the background, each named only when it is whole."""

import shutil
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
        return arrays.read(self.folder / str(step), target)

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
