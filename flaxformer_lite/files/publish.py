"""Atomic publishing: files and directories appear as a whole.

A killed process leaves either the old ones or the new.

They are made under a private name beside their place, flushed to disk, and moved there in one step.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite.config import ConfigError

LOCK_SECONDS = 10.0  # seconds
MAX_STEM_BYTES = 233  # bytes; file systems allow 255, and private names have 22 more
RENAME_EXCHANGE = 2  # of Linux
AT_FDCWD = -100  # of Linux: this folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which replaces `path` when the block ends without error.

    A symbolic link is replaced, not followed. Files left by killed processes are removed.

    Raises:
      OSError: it cannot be written; names `path`.
    """
    try:
        with _locked(path, Path.touch) as made:
            yield made
            _flush(made)
            os.replace(made, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    # The folder, too, or a power failure could undo the move.
    _flush(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file by its whole content; see `new_file`."""
    with new_file(path) as made:
        made.write_bytes(content)


def check_writable(path: Path) -> None:
    """Checks that a file or a folder can be written at a path, before there is anything to write.

    Folders above it that do not exist would be made.

    Raises:
      ConfigError: it cannot be written.
    """
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # a name may be too long
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another place."
        ) from None


@contextlib.contextmanager
def new_directory(target: Path, *, carry: Callable[[str], bool] | None = None) -> Iterator[Path]:
    """Yields an empty directory that replaces `target` when the block ends without an error.

    Args:
      target: path of the directory; a symbolic link is replaced, not followed.
      carry: whether an entry of an existing directory, by its name, is kept where the new one has
        none; None refuses an existing target.

    Raises:
      ConfigError: `target` may not be replaced, cannot be written, or is being written by another
        process.
    """
    if target.name in ("", ".."):
        target = target.resolve()
    target = target.parent.resolve() / target.name  # a link itself is replaced, not followed
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with private_directory(target) as made:
            _check_replaceable(target, carry)
            yield made
            for path in made.rglob("*"):
                if not path.is_symlink():
                    _flush(path)
            if carry and target.is_dir() and not target.is_symlink():
                shutil.copymode(target, made)
                for entry in target.iterdir():
                    if carry(entry.name) and not os.path.lexists(made / entry.name):
                        _link(entry, made / entry.name)
            _flush(made)
            _check_replaceable(target, carry)  # another process may have been faster
            _swap(made, target)
        _flush(target.parent)
    except OSError as error:
        raise ConfigError(
            f"{target}: cannot be written ({error}); choose another directory."
        ) from error


def recover_directory(target: Path) -> None:
    """Moves a directory back that a process killed between two renames left aside (see `_swap`)."""
    if os.path.lexists(target):
        return
    asides = sorted(target.parent.glob(f".{glob.escape(_stem(target))}.*.old"))
    for aside in asides[:1]:
        with contextlib.suppress(OSError):
            aside.rename(target)


@contextlib.contextmanager
def private_directory(target: Path, *, alone: bool = True) -> Iterator[Path]:
    """Makes a directory that is locked as long as this process lives.

    Directories left by killed processes are removed.

    Args:
      target: path beside which it is made.
      alone: whether to refuse if another process has made one for the same target.

    Raises:
      ConfigError: another process has made one, and `alone`.
    """

    def make(made: Path) -> None:
        recover_directory(target)
        made.mkdir()

    with _locked(target, make, alone=alone) as made:
        yield made


@contextlib.contextmanager
def _locked(target: Path, make: Callable[[Path], None], *, alone: bool = False) -> Iterator[Path]:
    """Makes a private file or directory as `private_directory` does; removes it in the end."""
    made = _private(target, "tmp")
    pattern = re.compile(re.escape(f".{_stem(target)}.") + r"[0-9a-f]{16}\.tmp")
    with contextlib.ExitStack() as stack:
        with _opened(target.parent) as parent:
            if alone:  # one at a time looks for others, where there are locks
                _lock(parent, LOCK_SECONDS)
            for other in [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]:
                if _is_held(other) and alone:
                    raise ConfigError(
                        f"{target}: another process is writing it (if none is, remove {other});"
                        " wait for it, or choose another directory."
                    )
            stack.callback(_remove, made)
            while not os.path.lexists(made):  # one that looks may remove it before it is locked
                make(made)
                with contextlib.suppress(FileNotFoundError):
                    _lock(stack.enter_context(_opened(made)), LOCK_SECONDS)
        yield made


def _is_held(path: Path) -> bool:
    """Returns whether another process may still write a private path; removes it if none does."""
    try:
        with _opened(path) as number:
            if not _lock(number):
                return True
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return True
    _remove(path)
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # a link that `_swap` has put there
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _check_replaceable(target: Path, carry: Callable[[str], bool] | None) -> None:
    if carry is None and os.path.lexists(target):
        raise ConfigError(f"{target}: exists and is not overwritten; remove it or choose another.")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file; choose another directory.")
    if target.is_mount() or Path.cwd().is_relative_to(target.resolve()):
        raise ConfigError(
            f"{target}: cannot be replaced as a whole, as it is a mount point or holds the current"
            " folder; choose a directory in it."
        )


def _swap(made: Path, target: Path) -> None:
    """Moves a directory to its place; the one it replaces is then at `made`."""
    if not os.path.lexists(target):
        made.rename(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if (
            libc.renameat2(
                AT_FDCWD, os.fsencode(made), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE
            )
            == 0
        ):
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise OSError(number, os.strerror(number))
    aside = _private(target, "old")  # if killed before the next rename, `recover` restores it
    target.rename(aside)
    made.rename(target)
    aside.rename(made)


def _private(path: Path, ending: str) -> Path:
    return path.parent / f".{_stem(path)}.{secrets.token_hex(8)}.{ending}"


def _stem(path: Path) -> str:
    """Returns what private names have of a name: all, or a hash where it leaves them no room."""
    name = os.fsencode(path.name)
    if len(name) <= MAX_STEM_BYTES:
        return path.name
    return hashlib.sha256(name).hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def _lock(directory: int, patience: float = 0.0) -> bool:
    """Locks a directory; returns whether it could.

    Another process may hold the lock, and some file systems have none.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() > deadline:
                return False
        time.sleep(0.02)


def _flush(path: Path) -> None:
    with _opened(path) as number:
        try:
            os.fsync(number)
        except OSError:
            if not path.is_dir():  # which some file systems cannot flush
                raise


def _link(source: Path, target: Path) -> None:
    """Links an entry at a second path; copies it where the file system has no links."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(
            source, target, symlinks=True, copy_function=lambda a, b: _link(Path(a), Path(b))
        )
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
