import threading

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import cache


def writer(calls, text="content"):
    def write(folder):
        calls.append(folder)
        (folder / "file.txt").write_text(text)

    return write


def test_written_once(tmp_path):
    calls = []
    first = cache.folder(tmp_path, "name", writer(calls))
    assert cache.folder(tmp_path, "name", writer(calls)) == first == tmp_path / "name"
    assert len(calls) == 1
    assert (first / "file.txt").read_text() == "content"
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest"])
def test_damage_is_repaired_with_a_notice(tmp_path, capsys, damage):
    calls = []
    folder = cache.folder(tmp_path, "name", writer(calls))
    if damage == "truncate":
        (folder / "file.txt").write_text("con")
    elif damage == "delete":
        (folder / "file.txt").unlink()
    else:
        (folder / cache.MANIFEST).write_text("{")
    assert (cache.folder(tmp_path, "name", writer(calls)) / "file.txt").read_text() == "content"
    assert len(calls) == 2
    assert "damaged, made again" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.folder(tmp_path, "name", fail)
    assert not list(tmp_path.iterdir())


def test_four_at_once(tmp_path):
    together, found = threading.Barrier(4), []

    def write(folder):
        together.wait()
        (folder / "file.txt").write_text("content")

    def use():
        found.append((cache.folder(tmp_path, "name", write) / "file.txt").read_text())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["content"] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data\.cache=.*cannot write there.*--config\.data\.cache=FOLDER"):
        cache.folder(tmp_path / "file" / "cache", "name", writer([]))


def test_a_full_disk(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"data\.cache=.*No space left on device"):
        cache.folder(tmp_path, "name", full)
