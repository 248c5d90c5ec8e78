"""A cache in a store: made by one host, copied by the others, and never used before it is whole."""

import threading

import pytest

from flaxformer_lite.storage import content_cache, lock, remote, shared_cache
from flaxformer_lite.storage.stores import StorageError
from tests import object_stores as storage

CONTENT = bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.1)
    monkeypatch.setattr(lock, "SILENCE", 600)


@pytest.fixture
def host(monkeypatch, tmp_path):
    """host(name, url, ..): opens an entry as a host with a disk of its own; returns its folder and
    whether it was made."""

    def use(name, url, content=CONTENT, entry="tokens-1"):
        monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / name))
        made = []

        def write(folder):
            made.append(1)
            (folder / "sub").mkdir()
            (folder / "train.bin").write_bytes(content)
            (folder / "sub" / "empty").write_bytes(b"")

        return content_cache.folder(url, entry, write), bool(made)

    return use


def test_the_first_host_makes_it_and_others_copy_it(bucket, host, tmp_path):
    url = f"{bucket.url}/first/"
    folder, made = host("a", url)
    assert made and folder == tmp_path / "a" / "tokens-1"
    names = [str(file).removeprefix(url) for file in remote.find_below(url)]
    assert names == ["tokens-1/complete.json", "tokens-1/sub/empty", "tokens-1/train.bin"]
    other, made = host("b", url)
    assert (
        not made
        and (other / "train.bin").read_bytes() == CONTENT
        and (other / "sub" / "empty").read_bytes() == b""
    )
    bucket.seen.clear()
    assert host("b", url) == (other, False)
    assert not bucket.seen  # what is on the disk needs no store


def test_what_is_half_sent_or_damaged_is_made_again(bucket, host, capsys):
    url = f"{bucket.url}/damaged"
    host("a", url)
    train = f"{url}/tokens-1/train.bin"
    manifest = f"{url}/tokens-1/complete.json"
    complete = remote.read(remote.find(manifest))
    storage.delete(manifest)  # as after a kill of the host that sent it
    assert host("b", url)[1]
    assert remote.read(remote.find(manifest)) == complete
    for number, spoil in enumerate(
        (
            lambda: storage.write(train, CONTENT[:-1] + b"?"),
            lambda: storage.write(train, CONTENT[:-1]),
            lambda: storage.delete(train),
            lambda: storage.write(manifest, complete[:-9]),
            lambda: storage.write(manifest, complete.replace(b"train.bin", b"../a")),
        )
    ):
        spoil()
        folder, made = host(f"c{number}", url)
        assert made and (folder / "train.bin").read_bytes() == CONTENT
        assert f"{url}/tokens-1: incomplete or damaged (" in capsys.readouterr().err
        assert not host(f"d{number}", url)[1]


def test_hosts_that_start_together_make_it_once(bucket, tmp_path, monkeypatch, capsys):
    entries = [f"{bucket.url}/together/tokens-1"] * 3
    made = []
    seen = []
    refused = []
    two_wait = threading.Event()

    class Watched(lock.Lock):
        def __enter__(self):
            try:
                return super().__enter__()
            except lock.LockError:  # at a heartbeat of the owner
                refused.append(threading.current_thread())
                if len(set(refused)) == 2 and min(map(refused.count, refused)) > 1:
                    two_wait.set()
                raise

    monkeypatch.setattr(shared_cache, "Lock", Watched)

    def run(number):
        entry = shared_cache.Entry(entries[number], content_cache.MANIFEST)
        folder = tmp_path / str(number)
        folder.mkdir()
        with entry.turn() as mine:
            if mine:
                made.append(number)
                assert two_wait.wait(600)
                (folder / "train.bin").write_bytes(CONTENT)
                (folder / content_cache.MANIFEST).write_text("{}")
                entry.send(folder)
        seen.append(entry.exists())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and seen == [True] * 3
    assert (
        capsys.readouterr().err.count(f"waiting for another process to write {entries[0]}\n") == 2
    )
    assert remote.find(f"{entries[0]}/.lock") is None


def test_what_another_host_completed_since_the_last_look_is_not_made_again(bucket, monkeypatch):
    entry = shared_cache.Entry(f"{bucket.url}/late/tokens-1", content_cache.MANIFEST)
    answers = iter([False, True])
    monkeypatch.setattr(entry, "exists", lambda: next(answers))
    with entry.turn() as mine:
        assert not mine
    assert remote.find(f"{bucket.url}/late/tokens-1/.lock") is None


def test_the_claim_of_a_killed_host_is_taken_over_and_that_of_a_failed_one_is_gone(
    bucket, host, monkeypatch, capsys
):
    monkeypatch.setattr(lock, "SILENCE", 0.3)
    url = f"{bucket.url}/killed"
    storage.write(f"{url}/tokens-1/.lock", b'{"owner": "process 5 on a host that was killed"}')
    assert host("a", url)[1]
    assert (
        f"another run is writing to {url}/tokens-1: process 5 on a host that was killed"
        in capsys.readouterr().err
    )
    with pytest.raises(ZeroDivisionError):
        content_cache.folder(url, "tokens-2", lambda folder: 1 / 0)
    assert [file.name for file in remote.find_below(url)] == ["complete.json", "empty", "train.bin"]


def test_a_store_that_may_not_be_written_is_said_before_the_work(bucket, host):
    bucket.fail(403, times=9, on="PUT|POST")
    with pytest.raises(StorageError, match=r"tokens-1: access is forbidden"):
        host("a", f"{bucket.url}/forbidden")
    bucket.faults.clear()
