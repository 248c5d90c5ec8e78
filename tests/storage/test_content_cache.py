import contextlib
import threading

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.storage import content_cache


def writer(calls, text="content"):
    def write(folder):
        calls.append(folder)
        (folder / "file.txt").write_text(text)

    return write


def test_a_store_is_no_place_for_the_copies_of_this_machine(monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", "gs://bucket/cache")
    with pytest.raises(ConfigError, match=r"FLAXFORMER_LITE_CACHE=gs://bucket/cache:.*folder"):
        content_cache.local("s3://bucket/cache")
    with pytest.raises(ConfigError, match=r"data.cache='gs://bucket/cache': must be a folder"):
        content_cache.folder("gs://bucket/cache", "name", writer([]))


def test_written_once_and_what_a_killed_process_left_is_removed(tmp_path):
    calls = []
    (tmp_path / f".name.{'0' * 16}.tmp").mkdir()
    first = content_cache.folder(tmp_path, "name", writer(calls))
    assert content_cache.folder(tmp_path, "name", writer(calls)) == first == tmp_path / "name"
    assert len(calls) == 1
    assert (first / "file.txt").read_text() == "content"
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


DAMAGE = {
    "truncated": lambda folder: (folder / "file.txt").write_text("con"),
    "flipped": lambda folder: (folder / "file.txt").write_text("cOntent"),
    "deleted": lambda folder: (folder / "file.txt").unlink(),
    "manifest": lambda folder: (folder / content_cache.MANIFEST).write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_repaired_with_a_notice(tmp_path, capsys, damage):
    calls = []
    folder = content_cache.folder(tmp_path, "name", writer(calls))
    DAMAGE[damage](folder)
    again = content_cache.folder(tmp_path, "name", writer(calls))
    assert (again / "file.txt").read_text() == "content"
    assert len(calls) == 2
    assert "damaged, written again" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        content_cache.folder(tmp_path, "name", fail)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def use_four_times(tmp_path):
    """Asks for a folder in four threads at once: what each found."""

    def use(write):
        found = []

        def ask():
            found.append((content_cache.folder(tmp_path, "name", write) / "file.txt").read_text())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [p.name for p in tmp_path.iterdir()] == ["name"]
        return found

    return use


def test_of_four_at_once_one_writes_and_the_others_wait(use_four_times, monkeypatch):
    calls = []
    messages = []
    together = threading.Barrier(4)

    @contextlib.contextmanager
    def working(message):
        messages.append(message)
        together.wait(600)
        yield

    def write(folder):
        together.wait(600)
        writer(calls)(folder)

    monkeypatch.setattr(content_cache.progress, "working", working)
    assert use_four_times(write) == ["content"] * 4
    assert len(calls) == 1
    assert messages == ["waiting for another process to write name"] * 3


def test_without_locks_all_write_and_one_stays(use_four_times, monkeypatch):
    together = threading.Barrier(4)

    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    def write(folder):
        together.wait()
        writer([])(folder)

    monkeypatch.setattr(content_cache.fcntl, "flock", no_locks)
    assert use_four_times(write) == ["content"] * 4


def test_of_many_blocks_some_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(content_cache, "BLOCK_BYTES", 2)
    monkeypatch.setattr(content_cache, "CHECKED_BLOCKS", 3)
    read = []
    real = content_cache._checksum
    folder = content_cache.folder(tmp_path, "name", writer([]))
    spy = lambda path, number: read.append(number) or real(path, number)  # noqa: E731
    monkeypatch.setattr(content_cache, "_checksum", spy)
    assert content_cache.folder(tmp_path, "name", writer([])) == folder
    assert len(set(read)) == 3 and set(read) <= {0, 1, 2, 3}


def test_a_folder_that_cannot_be_made_and_a_full_disk(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    (tmp_path / "file").touch()
    for at, write, said in (
        (tmp_path / "file" / "cache", writer([]), "cannot write there.*--config.data.cache=FOLDER"),
        (tmp_path, full, "No space left on device"),
    ):
        with pytest.raises(ConfigError, match=rf"data\.cache=.*{said}"):
            content_cache.folder(at, "name", write)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing half written"
