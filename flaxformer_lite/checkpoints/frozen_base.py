"""The record of weights that a run reads whenever it starts, and does not save with a step.

They are frozen leaves that come unchanged from `train.init_from`, and all leaves of a second
model from a directory. The workdir describes them in base.json, and may hold a copy of them, which
is written once before the first step.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.checkpoints.digest import Leaves
from flaxformer_lite.checkpoints.record import CheckpointError
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import parse_object, read_bytes

FILE = "base.json"
FOLDER = "base"  # of the copy, in the form of a checkpoint
MAX_BYTES = 1 << 26  # a leaf takes 150; models of many unstacked experts have 100,000


class Base(NamedTuple):
    """Weights that a run was trained over.

    Attributes:
      init_from: the `train.init_from` by which they were read.
      source: that folder as an absolute path, or its address, on the Hub with the commit.
      kept: "reference": they are read from `source`; "copy": from base/ in the workdir.
      leaves: [dtype, shape, digest] of each by its path in the run's parameters; the leaves of a
        second model, which is always read from its own directory, are below its name.
    """

    init_from: str
    source: str
    kept: str
    leaves: Leaves

    @property
    def digest(self) -> str:
        """A hash of the leaves, which the record of each checkpoint holds."""
        return hashlib.sha256(json.dumps(self.leaves, sort_keys=True).encode()).hexdigest()[:16]

    def place(self, init_from: str) -> str:
        """Returns where to read the weights, for a run with this `train.init_from`."""
        if init_from == self.init_from:
            return self.source
        return init_from

    def check(
        self, leaves: Leaves, source: str, moved: str = "", needed: Iterable[str] = ()
    ) -> None:
        """Refuses other weights.

        Args:
          leaves: of what was read, by path.
          source: where it was read.
          moved: the flag that names another folder; "" if none does.
          needed: paths that must be among them.

        Raises:
          CheckpointError: names the first leaf that differs.
        """
        for path in sorted({*leaves, *needed}):
            now = leaves.get(path)
            then = self.leaves.get(path)
            if now != then:
                elsewhere = ""
                if moved:
                    elsewhere = f", or name a folder that has them: {moved}=FOLDER"
                raise CheckpointError(
                    f"{source}: {path} is not what the run was trained over ({_show(then)}, now"
                    f" {_show(now)}); put the old weights back{elsewhere}."
                )


def write_base(folder: Path, base: Base) -> None:
    """Writes base.json into a workdir."""
    content = {"digest": base.digest, **base._asdict()}
    write_file(folder / FILE, f"{json.dumps(content)}\n".encode())


def read_base(folder: Path, digest: str) -> Base | None:
    """Reads base.json.

    Args:
      folder: the workdir, on this machine.
      digest: in the record of a checkpoint; "" if the checkpoint holds all weights.

    Returns:
      The description, or None if the checkpoint needs none.

    Raises:
      CheckpointError: the file is missing or belongs to other checkpoints.
    """
    if not digest:
        return None
    where = f"{folder}/{FILE}"
    kinds = {"init_from": str, "source": str, "kept": str, "leaves": dict}
    content = read_bytes(folder / FILE, limit=MAX_BYTES, error=CheckpointError)
    fields = parse_object(content, where, kinds, error=CheckpointError)
    base = Base(*[fields.get(name) or kind() for name, kind in kinds.items()])
    if base.digest != digest:
        raise CheckpointError(
            f"{where}: does not describe the weights that these checkpoints were trained over; put"
            " back the file that the run wrote."
        )
    return base


def _show(leaf: list | None) -> str:
    if leaf is None:
        return "absent"
    dtype, shape, digest = leaf
    return f"{dtype}{shape} {digest[:8]}".rstrip()
