"""The record beside a checkpoint's state: what it was made of, sealed by a digest of its own."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from flaxformer_lite.checkpoints.digest import Leaves
from flaxformer_lite.files.read import parse_object, read_bytes
from flaxformer_lite.storage.objects import Objects

STATE = "state"  # folders of a checkpoint
RECORD = "meta"
FILE = f"{RECORD}/metadata"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says which, why and what to do."""


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """Adds to the record a digest of itself."""
    plain = json.loads(json.dumps(record))
    return {
        **plain,
        "digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
    }


def read_record(at: Path | Objects) -> dict[str, Any]:
    """Reads the record of a checkpoint, `.../30`; raises CheckpointError if it was changed or does
    not exist."""
    if isinstance(at, Objects):
        if (content := at.read(FILE)) is None:
            raise CheckpointError(f"{at}/{FILE}: there is no such object")
    else:
        check_regular(at)
        content = read_bytes(at / FILE, error=CheckpointError)
    return _checked(content, f"{at}/{FILE}", at.name)


def check_regular(folder: Path) -> None:
    """Refuses a pipe or device, which orbax would read for ever."""
    for at, _, names in os.walk(
        folder
    ):  # rglob fails at folders that another process removes meanwhile
        for path in (Path(at, name) for name in names):
            if path.is_fifo() or path.is_char_device():
                raise CheckpointError(
                    f"{path}: is a pipe or a device; remove it, or choose another --workdir."
                )


def _checked(content: bytes, where: str, step: str) -> dict[str, Any]:
    """Parses the record of a step; raises CheckpointError if it was changed, or is another's."""
    record = parse_object(content, where, {"step": int, "leaves": dict}, error=CheckpointError)
    stored = record.pop("digest", None)
    if sealed(record)["digest"] != stored:
        raise CheckpointError(f"{where}: its content does not match its digest")
    if str(record.get("step", step)) != step:
        raise CheckpointError(
            f"{where}: it is of step {record['step']}, a copy of another checkpoint"
        )
    leaves = record.get("leaves") or {"": None}
    if not all(
        isinstance(leaf, list) and list(map(type, leaf)) == [str, list, str]
        for leaf in leaves.values()
    ):
        raise CheckpointError(f"{where}: its leaves are not described")
    return record


def compare(step: int, stored: Leaves, wanted: Leaves) -> None:
    """Refuses a different tree: orbax would cast dtypes silently, or raise an error about tree
    structures."""

    def show(leaves, path):
        return f"{leaves[path][0]}{leaves[path][1]}" if path in leaves else "absent"

    changed = [p for p in {**stored, **wanted} if show(stored, p) != show(wanted, p)]
    if changed:
        lines = [f"{path}: {show(stored, path)} -> {show(wanted, path)}" for path in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise CheckpointError(
            f"checkpoint of step {step} has other leaves than this model: {'; '.join(lines)}{more}."
            " Choose another --workdir, or the version of the code that wrote it."
        )


def broken_leaf(stored: Leaves, read: Leaves) -> str:
    """Returns the path of a leaf that was read with different content than was stored, or ""."""
    return next((path for path, leaf in read.items() if leaf != stored[path]), "")


def first_line(error: BaseException) -> str:
    while (
        error.__cause__ is not None
    ):  # orbax wraps tensorstore's error, which names the leaf and the file
        error = error.__cause__
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 240 else f"{line[:110]} ... {line[-120:]}"  # the cause comes last
