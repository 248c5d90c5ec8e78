import json
import time

import pytest

from flaxformer_lite.storage import lock
from flaxformer_lite.storage.kvstore import Versioned
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 60)


@pytest.fixture
def objects(bucket, request):
    return Objects(f"{bucket.url}/{''.join(c for c in request.node.name if c.isalpha())}")


def hold(objects, **changes):
    """Writes what a run that was killed leaves."""
    said = {"token": "x", "owner": "process 5 on far", "machine": "far", "process": 5}
    said |= {"since": "2026-01-02 03:04 UTC"} | changes
    objects.write(".lock", json.dumps(said).encode())


def test_a_second_run_is_refused_with_the_owner_named_and_begins_when_the_first_ends(objects):
    said = r"writing.*: process \d+ on .*, since 20.* UTC. Wait for it"
    with Lock(objects, "first"), pytest.raises(LockError, match=said):
        Lock(objects, "second").__enter__()
    assert objects.names() == []
    with Lock(objects, "third"):
        assert b'"third"' in objects.read(".lock")


def test_a_bucket_that_does_not_exist_is_told(bucket):
    with pytest.raises(StorageError, match=r"no bucket.*check its name"):
        Lock(Objects(f"{bucket.url[:2]}://elsewhere/run"), "first").__enter__()


def test_released_after_an_error_too(objects):
    with pytest.raises(ZeroDivisionError), Lock(objects, "first"):
        1 / 0  # noqa: B018
    assert objects.names() == []


def test_of_an_owner_that_is_gone_from_this_machine_is_taken_over_at_once(objects, monkeypatch):
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 1e6)
    hold(objects, machine=lock._machine(), process=2**22 + 1)
    with Lock(objects, "next"):
        assert b'"next"' in objects.read(".lock")


def test_of_a_silent_owner_elsewhere_is_taken_over_after_a_while(objects, monkeypatch, capsys):
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 0.3)
    hold(objects)
    before = time.monotonic()
    with Lock(objects, "next"):
        assert time.monotonic() - before >= 0.3
    assert "process 5 on far, since 2026-01-02 03:04 UTC. Waiting up to" in capsys.readouterr().err


GONE = r"process 5 on far.*no heartbeat"


def test_an_owner_learns_that_another_took_over(objects):
    with Lock(objects, "first") as held:
        held.check()
        hold(objects)
        while not held._ended.wait(0.02) and held._thread.is_alive():
            pass
        with pytest.raises(LockError, match=GONE):
            held.check()
    assert b"far" in objects.read(".lock")  # not ours to release


def test_after_a_silence_an_owner_asks_before_it_writes(objects, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 1e6)
    monkeypatch.setattr(lock, "SILENCE_SECONDS", -1)
    with Lock(objects, "first") as held:
        held.check(ask=True)
        hold(objects)
        held.check()  # nobody has told it
        with pytest.raises(LockError, match=GONE):
            held.check(ask=True)


def test_of_two_that_see_no_lock_one_gets_it(objects, monkeypatch):
    seen = Versioned(objects.url, ".lock").read()
    monkeypatch.setattr(Versioned, "read", lambda self: seen)
    with Lock(objects, "first"):
        with pytest.raises(LockError):
            Lock(objects, "second").__enter__()
        assert b'"first"' in objects.read(".lock")
