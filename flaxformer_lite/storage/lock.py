"""A lock in an object store: an object that its owner rewrites, and that nobody else may while it
does.

It is created, rewritten and taken over by conditional requests, so that of two owners at most one
succeeds. One that was killed leaves it behind; the next takes it over at once if it sees that the
owner is gone from its own machine, else when it has watched it for SILENCE and has seen no beat. No
clocks are compared.
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
from typing import Any

from flaxformer_lite.storage.kvstore import Version, Versioned
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError

NAME = ".lock"
_held: set["Lock"] = set()  # by this process
BEAT = 10.0  # seconds between two beats, and without one until an owner counts as gone
SILENCE = 60.0


class LockError(RuntimeError):
    """A lock that another holds, or has taken over; the message says who, and since when."""


class Lock(contextlib.AbstractContextManager):
    """Holds a lock within a block.

    Args:
      objects: what it locks, such as a workdir.
      token: known to its owner only, such as the processes of a run.

    Raises:
      LockError: another holds it.
      StorageError: the store cannot be used.
    """

    def __init__(self, objects: Objects, token: str):
        self._objects = objects
        self._object = Versioned(objects.url, NAME)
        self._token = token
        self._lost = ""
        self._told = False
        now = datetime.datetime.now(datetime.UTC)
        me = f"process {os.getpid()} on {socket.gethostname()}"
        since = f"{now:%Y-%m-%d %H:%M} UTC"
        self._said = {"owner": me, "machine": _machine(), "process": os.getpid(), "since": since}
        self._mark = b""
        self._beats = 0
        self._ended = threading.Event()
        self._kept = time.monotonic()  # when the store last said that the lock is ours
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Lock":
        self._objects.names(NAME)  # raises where there is no bucket
        seen = self._object.read()
        if seen.content is not None and not _is_gone(_parsed(seen)):
            seen = self._watched(seen)
        if not self._replace(seen.mark):
            raise LockError(_taken(self._objects, _parsed(self._object.read())))
        self._thread.start()
        _held.add(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def release(self) -> None:
        """Lets the next run begin at once; where that fails, it waits for SILENCE."""
        _held.discard(self)
        self._ended.set()
        self._thread.join(1)  # else it is in a request, whose answer changes the mark
        with contextlib.suppress(StorageError):
            self._object.replace(None, self._mark)

    def check(self, *, ask: bool = False) -> None:
        """Raises LockError if another run is known to have taken the lock over.

        Args:
          ask: asks the store, and raises StorageError where it does not answer, after a silence in
            which another run may have taken it over, such as that of a network that failed.
        """
        if ask and not self._lost and time.monotonic() - self._kept > SILENCE / 2:
            seen = self._object.read()
            if _parsed(seen).get("token") == self._token:
                self._kept = time.monotonic()
            else:
                self._lose(_parsed(seen))
        if self._lost:
            raise LockError(self._lost)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(StorageError):  # the next beat may come through
                if not self._replace(self._mark):
                    self._lose(_parsed(self._object.read()))
                    return

    def _lose(self, holder: dict[str, Any]) -> None:
        self._lost = (
            f"{_taken(self._objects, holder)} It took the lock over while this run was silent."
        )

    def _replace(self, seen: bytes) -> bool:
        """Rewrites the lock if it is still what was seen; returns whether it is ours then."""
        self._beats = self._beats + 1
        asked = time.monotonic()
        content = json.dumps(
            {"token": self._token, "beat": self._beats, **self._said}, indent=2
        ).encode()
        mark = self._object.replace(content, seen)
        if mark is None and (now := self._object.read()).content == content:
            mark = now.mark  # the answer to an earlier try was lost
        if mark is not None:
            self._mark = mark
            self._kept = asked
        return mark is not None

    def _watched(self, seen: Version) -> Version:
        """Waits until a lock that is held is released, or silent for long enough; raises LockError
        at a beat."""
        holder = _parsed(seen)
        end = time.monotonic() + SILENCE
        if not self._told:
            waiting = f"Waiting up to {SILENCE:.0f} s for a sign of life."
            print(f"notice: {_taken(self._objects, holder)} {waiting}", file=sys.stderr)
        self._told = True
        while time.monotonic() < end:
            time.sleep(BEAT / 2)
            now = self._object.read()
            if now.content is None:
                return now
            if now.mark != seen.mark:
                raise LockError(
                    f"{_taken(self._objects, _parsed(now))} Wait for it, or choose another"
                    " --workdir."
                )
        return seen


def release_held() -> None:
    """Releases what this process holds, before it ends without leaving its blocks."""
    for lock in [*_held]:
        lock.release()


def _parsed(seen: Version) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(seen.content or b"")
        return found if isinstance(found, dict) else {}
    return {}


def _taken(objects: Objects, holder: dict[str, Any]) -> str:
    return (
        f"another run is writing to {objects}: {holder.get('owner', 'unknown')}, since"
        f" {holder.get('since', 'unknown')}."
    )


def _is_gone(holder: dict[str, Any]) -> bool:
    """Returns whether the owner was a process of this machine, and is no more."""
    number = holder.get("process")
    return (
        holder.get("machine") == _machine()
        and isinstance(number, int)
        and not Path(f"/proc/{number}").exists()
    )


def _machine() -> str:
    """Names what process numbers belong to: a start of a machine, and a container on it; "" if it
    cannot be told."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    return f"unknown to process {os.getpid()}"
