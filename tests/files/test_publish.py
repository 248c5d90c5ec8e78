"""Files and directories appear whole: what was there stays until the new one is complete."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files import publish

ROOT = Path(__file__).parents[2]


def fill(folder: Path, text: str) -> None:
    (folder / "x").write_text(text)


def write(target: Path, text: str, carry=lambda name: True) -> None:
    with publish.new_directory(target, carry=carry) as made:
        fill(made, text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("kills", "pairs"), [(1, 1), pytest.param(6, 2, marks=pytest.mark.nightly)]
)
def test_killed_or_two_at_once_a_directory_is_old_or_new(tmp_path, kills, pairs):
    """The long run is tools/publishers.py."""
    command = [
        sys.executable,
        "tools/publishers.py",
        f"--kills={kills}",
        f"--pairs={pairs}",
        f"--folder={tmp_path}",
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        f"{kills} saved: old or new" in ended.stdout
        and f"{pairs} two at once, convert: 1 wrote" in ended.stdout
    )


def test_all_is_on_the_disk_before_it_is_moved_to_its_place(tmp_path, monkeypatch):
    """Or a power failure could leave a name without its content."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(read_name(number)))

    def read_name(number):
        is_there = "there" if (tmp_path / "a").exists() else "not there"
        return Path(os.readlink(f"/proc/self/fd/{number}")).name, is_there

    with publish.new_directory(tmp_path / "a") as made:
        fill(made, "new")
    folder = tmp_path.name, "there"
    assert flushed == [("x", "not there"), (made.name, "not there"), folder]
    (tmp_path / "a" / "x").unlink()
    (tmp_path / "a").rmdir()
    flushed.clear()
    with publish.new_file(tmp_path / "a") as file:
        file.write_text("new")
    assert flushed == [(file.name, "not there"), folder]


def test_a_directory_is_moved_to_its_place_and_not_copied(tmp_path):
    for text in ("first", "second"):
        with publish.new_directory(tmp_path / "a", carry=bool) as made:
            fill(made, text)
            inode = made.stat().st_ino
        assert (tmp_path / "a").stat().st_ino == inode


def test_an_error_leaves_the_old_directory_and_nothing_else(tmp_path):
    write(tmp_path / "a", "old")
    with (
        pytest.raises(ValueError, match="broken"),
        publish.new_directory(tmp_path / "a", carry=bool) as made,
    ):
        fill(made, "new")
        raise ValueError("broken")
    assert (tmp_path / "a/x").read_text() == "old" and names(tmp_path) == ["a"]


def test_other_entries_stay_and_no_link_is_written_through(tmp_path):
    blob = tmp_path / "blob"
    target = tmp_path / "a"
    (target / "sub").mkdir(parents=True)
    for path in (blob, target / "sub" / "y", target / "mine", target / "dropped"):
        path.write_text("old")
    (target / "x").symlink_to(blob)
    (target / "link").symlink_to("mine")
    write(target, "new", carry=lambda name: name != "dropped")
    assert names(target) == ["link", "mine", "sub", "x"] and (target / "link").is_symlink()
    assert (target / "x").read_text() == "new" and blob.read_text() == (
        target / "sub" / "y"
    ).read_text() == "old"


def test_a_link_to_a_directory_is_replaced(tmp_path):
    write(tmp_path / "a", "old")
    (tmp_path / "b").symlink_to("a")
    write(tmp_path / "b", "new")
    assert (
        not (tmp_path / "b").is_symlink()
        and (tmp_path / "a/x").read_text() == "old"
        and names(tmp_path) == ["a", "b"]
    )


def test_what_cannot_be_replaced_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigError, match="a: is a file; choose another directory"):
        write(tmp_path / "a", "new")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the current folder;.*choose.*directory"):
        write(Path("."), "new")


def test_an_existing_directory_is_refused_if_nothing_may_be_replaced(tmp_path):
    write(tmp_path / "a", "old", carry=None)
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        write(tmp_path / "a", "new", carry=None)
    with (
        pytest.raises(ConfigError, match="exists and"),
        publish.new_directory(tmp_path / "b") as made,
    ):  # made meanwhile
        fill(made, "new")
        (tmp_path / "b").mkdir()
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"file/a: cannot be written \(.*; choose another directory"
    ):
        write(tmp_path / "file" / "a", "new")


def test_the_second_of_two_is_told(tmp_path):
    with publish.new_directory(tmp_path / "a") as made:
        fill(made, "first")
        with pytest.raises(ConfigError, match="a: another process is writing it"):
            write(tmp_path / "a", "second")
    assert (tmp_path / "a/x").read_text() == "first"


def test_what_a_killed_process_left_is_removed_and_nobody_elses(tmp_path):
    for name in (f".a.{'0' * 16}.tmp", ".a.partial", f".b.{'0' * 16}.tmp"):
        (tmp_path / name).mkdir()
    write(tmp_path / "a", "new")
    (tmp_path / f".c.{'0' * 16}.tmp").touch()
    with publish.new_file(tmp_path / "c") as first:
        publish.write_file(tmp_path / "c", b"second")
        first.write_text("first")
    assert (tmp_path / "c").read_text() == "first"
    assert names(tmp_path) == [".a.partial", f".b.{'0' * 16}.tmp", "a", "c"]


def test_the_longest_names(tmp_path):
    """Private names are longer, and a name that is too long is refused before there is work."""
    for name in ("x" * 234, "é" * 127):
        publish.check_writable(tmp_path / name)
        publish.write_file(tmp_path / name, b"new")
        write(tmp_path / f"{name[:-1]}y", "new")
    assert len(names(tmp_path)) == 4
    with pytest.raises(ConfigError, match=r"x: cannot be written \(File name too long\)"):
        publish.check_writable(tmp_path / ("x" * 256))


def test_without_an_exchange_the_old_directory_is_found_again(tmp_path, monkeypatch):
    """A file system or a system without it: two renames, with a kill between them at the worst."""
    monkeypatch.setattr(publish.ctypes, "CDLL", lambda *_, **__: object())
    write(tmp_path / "a", "old")
    write(tmp_path / "a", "new")
    assert (tmp_path / "a/x").read_text() == "new" and names(tmp_path) == ["a"]
    (tmp_path / "a").rename(tmp_path / f".a.{'0' * 16}.old")
    publish.recover_directory(tmp_path / "a")
    assert (tmp_path / "a/x").read_text() == "new" and names(tmp_path) == ["a"]


def test_a_file_is_replaced_whole_and_not_through_its_link(tmp_path):
    (tmp_path / "blob").write_text("old")
    (tmp_path / "x").symlink_to("blob")
    publish.write_file(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_text() == "new" and (tmp_path / "blob").read_text() == "old"
    seen = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add((tmp_path / "x").read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(200):
        publish.write_file(tmp_path / "x", str(n % 2).encode() * 100_000)
    done.set()
    reader.join()
    assert seen <= {"new", "0" * 100_000, "1" * 100_000} and names(tmp_path) == ["blob", "x"]
