"""A lock in an object store: an object that its owner rewrites every HEARTBEAT_SECONDS seconds.

The object is created, rewritten and taken over by conditional requests, so that at most one of two
owners succeeds. An owner that was killed leaves it behind; the next one takes it over at once if
the owner was a process of the same machine that no longer exists, else after watching the lock for
SILENCE_SECONDS seconds without a heartbeat. No clocks are compared.
"""

import contextlib
import datetime
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from flaxformer_lite.files.read import Json
from flaxformer_lite.storage.kvstore import Version, Versioned
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError

NAME = ".lock"
_held: set["Lock"] = set()  # the locks that this process holds
HEARTBEAT_SECONDS = 10.0  # seconds between two heartbeats
SILENCE_SECONDS = 60.0  # seconds without a heartbeat until an owner counts as gone


class LockError(RuntimeError):
    """A lock that another run holds or has taken over; the message says who, and since when."""


class Lock(contextlib.AbstractContextManager):
    """Holds a lock within a block.

    Args:
      objects: the address to lock, such as a workdir's.
      token: a secret of the owner, which all processes of a run may share.

    Raises:
      LockError: another owner holds it.
      StorageError: the store cannot be used.
    """

    def __init__(self, objects: Objects, token: str):
        self._objects = objects
        self._object = Versioned(objects.url, NAME)
        self._token = token
        self._lost = ""
        self._notified = False
        now = datetime.datetime.now(datetime.UTC)
        me = f"process {os.getpid()} on {socket.gethostname()}"
        since = f"{now:%Y-%m-%d %H:%M} UTC"
        self._owner = {"owner": me, "machine": _machine(), "process": os.getpid(), "since": since}
        self._mark = b""
        self._beats = 0
        self._ended = threading.Event()
        self._confirmed = time.monotonic()  # when the store last confirmed that we hold the lock
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Lock":
        self._objects.below(NAME).names()  # raises if the bucket does not exist
        seen = self._object.read()
        if seen.content is not None and not _is_gone(_parsed(seen)):
            seen = self._watched(seen)
        if not self._replace(seen.mark):
            raise LockError(_taken(self._objects, _parsed(self._object.read())))
        self._thread.start()
        _held.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Deletes the lock; if that fails, the next run waits for SILENCE_SECONDS seconds."""
        _held.discard(self)
        self._ended.set()
        self._thread.join(1)  # a heartbeat in progress changes the mark
        with contextlib.suppress(StorageError):
            self._object.replace(None, self._mark)

    def check(self, *, ask: bool = False) -> None:
        """Raises if another run has taken the lock over.

        Args:
          ask: whether to ask the store if it has not confirmed the lock for SILENCE_SECONDS / 2,
            for example because the network failed.

        Raises:
          LockError: another run has taken the lock over.
          StorageError: the store does not answer.
        """
        if ask and not self._lost and time.monotonic() - self._confirmed > SILENCE_SECONDS / 2:
            seen = self._object.read()
            if _parsed(seen).get("token") == self._token:
                self._confirmed = time.monotonic()
            else:
                self._lose(_parsed(seen))
        if self._lost:
            raise LockError(self._lost)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(StorageError):  # the next heartbeat may succeed
                if not self._replace(self._mark):
                    self._lose(_parsed(self._object.read()))
                    return

    def _lose(self, holder: Json) -> None:
        what = "It took the lock over while this run sent no heartbeat."
        self._lost = f"{_taken(self._objects, holder)} {what}"

    def _replace(self, seen: bytes) -> bool:
        """Rewrites the lock if its mark is still `seen`; returns whether this process holds it."""
        self._beats += 1
        # Read before the request, as its answer may come late.
        begun = time.monotonic()
        beat = {"token": self._token, "beat": self._beats, **self._owner}
        content = json.dumps(beat, indent=2).encode()
        mark = self._object.replace(content, seen)
        if mark is None:
            now = self._object.read()
            if now.content == content:  # the answer to an earlier attempt was lost
                mark = now.mark
        if mark is None:
            return False
        self._mark = mark
        self._confirmed = begun
        return True

    def _watched(self, seen: Version) -> Version:
        """Waits until a held lock is released, or has had no heartbeat for SILENCE_SECONDS seconds.

        Raises:
          LockError: the owner sent a heartbeat.
        """
        holder = _parsed(seen)
        end = time.monotonic() + SILENCE_SECONDS
        if not self._notified:
            waiting = f"Waiting up to {SILENCE_SECONDS:.0f} s for a heartbeat."
            print(f"notice: {_taken(self._objects, holder)} {waiting}", file=sys.stderr)
        self._notified = True
        while time.monotonic() < end:
            time.sleep(HEARTBEAT_SECONDS / 2)
            now = self._object.read()
            if now.content is None:
                return now
            if now.mark != seen.mark:
                owner = _taken(self._objects, _parsed(now))
                raise LockError(f"{owner} Wait for it to end, or choose another --workdir.")
        return seen


def release_held() -> None:
    """Releases all locks of this process, for an exit that skips the ends of blocks."""
    for lock in [*_held]:
        lock.release()


def _parsed(seen: Version) -> Json:
    try:
        content = json.loads(seen.content or b"")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _taken(objects: Objects, holder: Json) -> str:
    return (
        f"another run is writing to {objects}: {holder.get('owner', 'unknown')}, since"
        f" {holder.get('since', 'unknown')}."
    )


def _is_gone(holder: Json) -> bool:
    """Returns whether the owner was a process of this machine that no longer exists."""
    number = holder.get("process")
    if holder.get("machine") != _machine() or not isinstance(number, int):
        return False
    # A system without /proc does not get here, as `_machine` is then another for each process.
    return not Path(f"/proc/{number}").exists()


def _machine() -> str:
    """Names the scope of process numbers: host, boot and container.

    If the system does not report it, the name is unique to this process.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown to process {os.getpid()}"
