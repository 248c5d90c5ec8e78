"""The record beside a checkpoint's state: what the state consists of, with a digest of itself."""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.checkpoints.digest import Leaves
from flaxformer_lite.files.read import Json, parse_object, read_bytes
from flaxformer_lite.storage.objects import Objects

STATE = "state"  # folders of a checkpoint
RECORD = "meta"
FILE = f"{RECORD}/metadata"
# A checkpoint that lacks a file is damaged; every other error of the system may pass.
DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # in a message of tensorstore
QUOTED_FILE = re.compile(r'"(/[^"]*)": ')


class Restored(NamedTuple):
    """A train state that was read from a checkpoint."""

    step: int
    state: Any
    meta: Json  # the record of the checkpoint
    notices: list[str]  # one per newer checkpoint that was damaged and set aside


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message says which, why and what to do."""


class UnreadableError(CheckpointError):
    """A checkpoint that the system does not let this process read, as opposed to a damaged one."""


def committed_steps(names: list[str]) -> list[int]:
    """Returns the steps of complete checkpoints, ascending, from the names of objects."""
    steps = [name.split("/")[0] for name in names if name.partition("/")[2] == FILE]
    return sorted(int(step) for step in steps if step.isdigit())


@contextlib.contextmanager
def tell_unreadable(at: object) -> Iterator[None]:
    """Raises UnreadableError for errors of the system, such as a denied permission.

    Args:
      at: the checkpoint, or the folder of all; named where the error names no file.
    """
    try:
        yield
    except Exception as error:  # of many types: tensorstore's are ValueError
        found: BaseException | None = error
        while found is not None:
            number, file = _system_error(found)
            if number and number not in DAMAGE:
                raise UnreadableError(
                    f"{file or at}: cannot be read ({os.strerror(number)}), so the checkpoint may"
                    " be sound and was left as it is; remove the cause, and run the same command"
                    " again."
                ) from error
            found = found.__cause__ or found.__context__
        raise


def _system_error(error: BaseException) -> tuple[int, str]:
    """Returns the error number of the system and the file that it is about; (0, "") for others."""
    if isinstance(error, OSError):
        return error.errno or 0, str(error.filename or "")
    told = OS_ERROR.search(str(error))
    if told is None:
        return 0, ""
    return int(told[1]), "".join(QUOTED_FILE.findall(str(error))[-1:])


def seal_record(record: Json) -> Json:
    """Adds to the record a digest of itself."""
    # Through JSON, as a reader will digest it: with lists for tuples, and keys that are strings.
    plain = json.loads(json.dumps(record))
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return {**plain, "digest": digest}


def read_record(at: Path | Objects) -> Json:
    """Reads the record of a checkpoint, `.../30`.

    Raises:
      UnreadableError: the system does not let this process read it.
      CheckpointError: it does not exist, or was changed.
    """
    if isinstance(at, Objects):
        content = at.read(FILE)
        if content is None:
            raise CheckpointError(f"{at}/{FILE}: there is no such object")
    else:
        check_regular(at)
        with tell_unreadable(at):
            content = read_bytes(at / FILE, error=CheckpointError)
    return _checked(content, f"{at}/{FILE}", at.name)


def check_regular(folder: Path) -> None:
    """Rejects a folder with a pipe or device, which orbax would read forever."""
    # Unlike rglob, os.walk ignores folders that another process removes meanwhile.
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if path.is_fifo() or path.is_char_device():
                raise CheckpointError(
                    f"{path}: is a pipe or a device; remove it, or choose another --workdir."
                )


def _checked(content: bytes, where: str, step: str) -> Json:
    """Parses the record of a step.

    Raises:
      CheckpointError: it was changed, or belongs to another step.
    """
    record = parse_object(content, where, {"step": int, "leaves": dict}, error=CheckpointError)
    stored = record.pop("digest", None)
    if seal_record(record)["digest"] != stored:
        raise CheckpointError(f"{where}: its content does not match its digest")
    if str(record.get("step", step)) != step:
        raise CheckpointError(
            f"{where}: it is of step {record['step']}, a copy of another checkpoint"
        )
    leaves = record.get("leaves")
    if not leaves or not all(map(_is_described, leaves.values())):
        raise CheckpointError(f"{where}: its leaves are not described")
    return record


def _is_described(leaf: object) -> bool:
    """Returns whether a leaf is [dtype, shape, digest]."""
    return isinstance(leaf, list) and list(map(type, leaf)) == [str, list, str]


def compare_leaves(step: int, stored: Leaves, wanted: Leaves) -> None:
    """Rejects a tree whose paths, dtypes or shapes differ from those that were stored.

    orbax would cast dtypes silently, or raise an error about tree structures.

    Raises:
      CheckpointError: the trees differ; names the first differing leaves.
    """

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
    """Returns the first line of the error that caused this one, shortened in the middle."""
    # orbax wraps the error of tensorstore, which names the leaf and the file.
    while error.__cause__ is not None:
        error = error.__cause__
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if len(line) <= 240:
        return line
    return f"{line[:110]} ... {line[-120:]}"  # tensorstore says the cause at the end


def first_reason(reasons: list[str]) -> str:
    """Returns the first reason that is not empty, or ""."""
    return next(filter(None, reasons), "")
