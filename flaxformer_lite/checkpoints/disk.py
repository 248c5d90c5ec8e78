"""Checkpoints on a disk, by orbax: written in the background, and renamed once complete."""

import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from flaxformer_lite.checkpoints.record import RECORD, STATE, CheckpointError, check_regular
from flaxformer_lite.files.read import Json
from flaxformer_lite.runtime.processes import Processes


class Disk:
    """The newest `keep` checkpoints in `folder/<step>`; leftovers of interrupted saves are removed.

    Raises:
      CheckpointError: the folder is not writable.
    """

    def __init__(self, folder: Path, *, keep: int, group: Processes):
        self.folder = Path(folder).resolve()  # tensorstore refuses `..`
        self._group = group
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Named after the process, as several may share the folder.
            probe = self.folder / f".writable{group.index}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(
                f"cannot write in {folder}: {error.strerror}; choose another --workdir."
            ) from None
        check_regular(self.folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def check_room(self, state: object) -> str:
        """Returns "" if the state fits on the disk, else a sentence that says what is missing."""
        # A tenth more, for the metadata and for what others write in the meantime.
        need = 1.1 * sum(x.nbytes for x in jax.tree.leaves(state))
        free = shutil.disk_usage(self.folder).free
        if free >= need:
            return ""
        return (
            f"needs {need / 1e6:.1f} MB, {self.folder} has {free / 1e6:.1f} MB free; free some,"
            " lower train.keep, or choose another --workdir."
        )

    def save(self, step: int, state: object, record: Json) -> None:
        """Copies the state and returns; the files are written in the background."""
        items = ocp.args.Composite(
            **{STATE: ocp.args.StandardSave(state), RECORD: ocp.args.JsonSave(record)}
        )
        # Forced, as the run decides when to save, not orbax's policy.
        self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Waits for the save in the background; raises if it failed."""
        self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        return list(self._manager.all_steps())

    def at(self, step: int) -> Path:
        """Returns where a checkpoint is."""
        return self.folder / str(step)

    def set_aside(self, step: int) -> str:
        """Quarantines a damaged checkpoint; returns its new location."""
        place = self.folder / "damaged" / str(step)
        if self._group.first:
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            self.at(step).rename(place)
        self._group.coordinate("a damaged checkpoint", None, lambda _: None)
        # orbax remembers the steps that it has listed.
        self._manager.reload()
        return f"moved to {place}"

    def close(self) -> None:
        self._manager.close()
