"""Text, tables and token ids in a store read as the same files on a disk do."""

import gzip

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data import find_files, token_files
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.data.rows import open_table
from flaxformer_lite.data.source import open_text
from flaxformer_lite.storage import remote
from flaxformer_lite.storage.stores import StorageError
from flaxformer_lite.text.tokenizer import Bytes
from tests import object_stores as storage
from tests.objectives.tables import write_rows

TEXT = ("text",)
ROWS = [{"text": f"document {n}, " * 40, "label": n % 2} for n in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file of each kind."""
    path = tmp_path_factory.mktemp("files")
    (path / "a.txt").write_text("plain text\n" * 9)
    write_rows(path / "b.jsonl", ROWS)
    lines = (path / "b.jsonl").read_bytes()
    (path / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    (path / "d.jsonl.zst").write_bytes(pyarrow.compress(lines, codec="zstd", asbytes=True))
    table = [f'"{row["text"]}",{row["label"]}' for row in ROWS]
    (path / "e.csv").write_text("\n".join(["text,label", *table]))
    (path / "f.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\nfirst\t1\nsecond\t0\n"))
    rows = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(rows, path / "g.parquet", row_group_size=50)
    with pyarrow.ipc.new_file(str(path / "h.arrow"), rows.schema) as out:
        out.write_table(rows)
    (path / "left.out").write_bytes(b"\0")
    (path / ".hidden.txt").write_text("hidden")
    return path


@pytest.fixture
def there(bucket, folder):
    """The address of a copy of the folder."""
    if remote.find(f"{bucket.url}/files/a.txt") is None:
        for path in folder.iterdir():
            remote.upload(path, f"{bucket.url}/files/{path.name}")
    return f"{bucket.url}/files"


def documents(path):
    return list(open_text(DataConfig(path=str(path)), TEXT).documents())


def test_every_kind_of_file_is_streamed(there, folder, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_BYTES", 4096)
    here, source = (open_text(DataConfig(path=str(path)), TEXT) for path in (folder, there))
    names = [file.name for file in here.files]
    assert len(names) == 8
    for name in names:
        assert documents(f"{there}/{name}") == documents(folder / name), name
    assert [file.name for file in source.files] == names
    assert [file.name for file in source.left_out] == ["left.out"]
    assert (source.size, source.kinds()) == (here.size, here.kinds())


def test_patterns_and_lists_may_mix_places(there, folder):
    found = documents(f"{there}/*.jsonl*, {folder}/a.txt,{there}/f.tsv.gz")
    rows = [(row["text"],) for row in ROWS] * 3
    assert found == [*rows, *documents(folder / "a.txt"), ("first",), ("second",)]


def read_of(bucket, name):
    """The requests for the content of an object."""
    marks = ("alt=media", f"GET /{name}")
    return [request for request in bucket.seen if any(mark in request for mark in marks)]


def test_the_fingerprint_follows_the_content_without_reading_it(bucket):
    url = f"{bucket.url}/print/a.txt"
    marks = []
    for content in (b"one", b"two", b"one"):
        storage.write(url, content)
        bucket.seen.clear()
        marks.append(open_text(DataConfig(path=url), TEXT).fingerprint)
        assert not read_of(bucket, url[5:])
    assert marks[0] == marks[2] != marks[1]


def test_token_ids_become_the_same_corpus(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "fetched"))
    known = Bytes()
    ids = np.concatenate([[*known.encode(f"document {n}"), known.eos_id] for n in range(99)])
    ids.astype(np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", ids)
    for name in ("a.bin", "b.npy"):
        remote.upload(tmp_path / name, f"{bucket.url}/ids/{name}")

    def opened(path, cache):
        words = TokenizerConfig(name="bytes")
        return open_corpus(
            DataConfig(path=path, cache=str(tmp_path / cache), tokenizer=words), TEXT
        )

    places = {"x": tmp_path, "y": f"{bucket.url}/ids"}
    corpora = [opened(f"{at}/a.bin,{at}/b.npy", cache) for cache, at in places.items()]
    for split in ("train", "eval"):
        here, there = (corpus.tokens[split] for corpus in corpora)
        assert np.array_equal(here.ids, there.ids) and np.array_equal(here.offsets, there.offsets)
    assert token_files.index_of(remote.find(f"{bucket.url}/ids/a.bin")) is None
    storage.write(f"{bucket.url}/ids/a.idx", b"no index")
    with pytest.raises(ConfigError, match=r"a.bin, a.idx: not Megatron's index, or damaged"):
        opened(f"{bucket.url}/ids/a.bin", "z")


def test_labelled_rows_come_from_a_store(there, folder, tmp_path, monkeypatch, bucket):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path))
    for name in ("b.jsonl", "e.csv", "g.parquet"):
        read, due = (open_table(f"{place}/{name}", "data.path") for place in (there, folder))
        assert (list(read.rows), read.columns) == (list(due.rows), due.columns)
        assert read.fingerprint == due.fingerprint
    bucket.seen.clear()
    # again: the store is asked, and nothing is copied
    open_table(f"{there}/b.jsonl", "data.path")
    assert bucket.seen and not read_of(bucket, f"{there[5:]}/b.jsonl?")
    for path in (there, f"{there}/*.csv", f"{there}/b.jsonl,{there}/e.csv"):
        assert find_files.splits_of(path) == ()


def test_what_cannot_be_read_names_field_and_address(bucket, there):
    elsewhere = f"{bucket.url[:5]}elsewhere/a.txt"
    for path, message in (
        (
            f"{there}/nothing",
            f"{there}/nothing: the bucket has no object of this name, and none bel",
        ),
        (f"{there}/*.nothing", rf"{there}/\*.nothing: the bucket has no object of this name"),
        (elsewhere, r"..://elsewhere/a.txt: there is no bucket elsewhere"),
    ):
        with pytest.raises(StorageError, match=f"data.path: {message}"):
            open_text(DataConfig(path=path), TEXT)
    for name, content, message in (
        ("a.txt", b"\xff\xfe", "a.txt': a.txt is not UTF-8 text"),
        ("a.jsonl.gz", gzip.compress(b"x" * 999)[:-9], r".*gz(:1)?:? (cannot be read|not JSON)"),
        ("a.parquet", b"PAR1 damaged", ".*a.parquet: cannot be read"),
        ("b.txt", b"", "b.txt': empty"),
    ):
        storage.write(f"{bucket.url}/bad/{name}", content)
        with pytest.raises(ConfigError, match=rf"data.path='{bucket.url}/bad/{message}"):
            documents(f"{bucket.url}/bad/{name}")
