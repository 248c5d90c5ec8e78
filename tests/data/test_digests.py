"""A start opens no file that has not changed; its time is proportional to the number of files."""

import os
import pathlib

import pytest

from flaxformer_lite.config import DataConfig
from flaxformer_lite.data import digests, source
from flaxformer_lite.data.rows import open_table


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(200):
        (tmp_path / "many" / f"{number}.txt").write_text(f"text {number:03}")
    return tmp_path / "many"


def opened(folder):
    cfg = DataConfig(path=str(folder), cache=str(folder.parent / "cache"))
    found = source.open_text(cfg, ("text",))
    return found.fingerprint, found.size


def test_files_that_have_not_changed_are_not_read_again(folder, monkeypatch):
    due = opened(folder)
    assert not (folder.parent / "cache").exists()  # they may change again in the same instant
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 0)
    assert opened(folder) == due
    with monkeypatch.context() as patch:
        patch.setattr(source.compressed, "reading", None)  # no file is opened
        assert opened(folder) == due
    path = folder / "7.txt"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text("text 00x")
    os.utime(path, ns=times)
    assert opened(folder)[0] != due[0]


def test_a_table_is_hashed_once(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 0)
    monkeypatch.setattr(digests, "SMALL_BYTES", 0)
    due = open_table(str(tmp_path / "t.csv"), "here").fingerprint
    for _ in range(2):
        read = open_table(str(tmp_path / "t.csv"), "here", root=str(tmp_path / "cache"))
        assert read.fingerprint == due
    assert len(list((tmp_path / "cache").glob("listing-*"))) == 1


def test_a_file_has_one_hash_as_text_and_another_as_a_table(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,b\n")
    due = open_table(str(path), "here").fingerprint
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 0)
    monkeypatch.setattr(digests, "SMALL_BYTES", 0)
    root = str(tmp_path / "cache")
    text = source.open_text(DataConfig(path=str(path), cache=root), ("text",))
    assert open_table(str(path), "here", root=root).fingerprint == due != text.fingerprint


def test_listing_a_folder_compares_each_file_a_few_times(folder, monkeypatch):
    compared = 0
    plain = pathlib.PurePath.__hash__

    def counted(path):
        nonlocal compared
        compared += 1
        return plain(path)

    monkeypatch.setattr(pathlib.PurePath, "__hash__", counted)
    opened(folder)
    assert compared < 20 * 200
