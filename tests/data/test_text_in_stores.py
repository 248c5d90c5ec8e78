"""Text, tables and token ids in a store read as the same files on a disk do."""

import gzip
import json
from datetime import timedelta

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data import table, token_files
from flaxformer_lite.data.corpus import open_corpus
from flaxformer_lite.data.text import open_source
from flaxformer_lite.storage import remote, stores
from flaxformer_lite.storage.stores import StorageError
from flaxformer_lite.text.tokenizer import Bytes
from tests import object_stores as storage

TEXT = ("text",)
ROWS = [{"text": f"document {n}, " * 40, "label": n % 2} for n in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file of each kind."""
    path = tmp_path_factory.mktemp("files")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (path / "a.txt").write_text("plain text\n" * 9)
    (path / "b.jsonl").write_text(lines)
    (path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with pyarrow.CompressedOutputStream(str(path / "d.jsonl.zst"), "zstd") as file:
        file.write(lines.encode())
    (path / "e.csv").write_text(
        "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in ROWS)
    )
    (path / "f.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\nfirst\t1\nsecond\t0\n"))
    rows = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(rows, path / "g.parquet", row_group_size=50)
    with (
        pyarrow.OSFile(str(path / "h.arrow"), "wb") as file,
        pyarrow.ipc.new_file(file, rows.schema) as out,
    ):
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
    return list(open_source(DataConfig(path=str(path)), TEXT).documents())


def test_every_kind_of_file_is_streamed(there, folder, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK", 4096)
    names = sorted(
        path.name for path in folder.iterdir() if path.suffix != ".out" and path.name[0] != "."
    )
    for name in names:
        assert documents(f"{there}/{name}") == documents(folder / name), name
    here = open_source(DataConfig(path=str(folder)), TEXT)
    source = open_source(DataConfig(path=there), TEXT)
    assert [file.name for file in source.files] == [file.name for file in here.files] == names
    assert [file.name for file in source.left_out] == ["left.out"]
    assert source.size == here.size
    assert source.kinds() == here.kinds()


def test_patterns_and_lists_may_mix_places(there, folder):
    found = documents(f"{there}/*.jsonl*, {folder}/a.txt,{there}/f.tsv.gz")
    assert found == [(row["text"],) for row in ROWS] * 3 + documents(folder / "a.txt") + [
        ("first",),
        ("second",),
    ]


def test_the_fingerprint_follows_the_content_without_reading_it(bucket):
    url = f"{bucket.url}/print/a.txt"
    marks = []
    for content in (b"one", b"two", b"one"):
        storage.write(url, content)
        bucket.seen.clear()
        marks.append(open_source(DataConfig(path=url), TEXT).fingerprint)
        assert not [
            request
            for request in bucket.seen
            if "alt=media" in request or request.startswith(f"GET /{url[5:]}")
        ]
    assert marks[0] == marks[2] != marks[1]


def test_token_ids_become_the_same_corpus(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "fetched"))
    known = Bytes()
    bytes_only = TokenizerConfig(name="bytes")
    ids = np.concatenate([[*known.encode(f"document {n}"), known.eos_id] for n in range(99)])
    ids.astype(np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", ids)
    for name in ("a.bin", "b.npy"):
        remote.upload(tmp_path / name, f"{bucket.url}/ids/{name}")
    corpora = [
        open_corpus(
            DataConfig(
                path=f"{place}/a.bin,{place}/b.npy",
                cache=str(tmp_path / name),
                tokenizer=bytes_only,
            ),
            TEXT,
        )
        for name, place in (("x", tmp_path), ("y", f"{bucket.url}/ids"))
    ]
    for split in ("train", "eval"):
        here, there = (corpus.tokens[split] for corpus in corpora)
        assert np.array_equal(here.ids, there.ids) and np.array_equal(here.offsets, there.offsets)
    assert token_files.index_of(remote.find(f"{bucket.url}/ids/a.bin")) is None
    storage.write(f"{bucket.url}/ids/a.idx", b"no index")
    with pytest.raises(ConfigError, match=r"a.bin, a.idx: not Megatron's index, or damaged"):
        open_corpus(
            DataConfig(path=f"{bucket.url}/ids/a.bin", cache=str(tmp_path), tokenizer=bytes_only),
            TEXT,
        )


def test_labelled_rows_and_a_tokenizer_come_from_a_store(
    there, folder, tmp_path, monkeypatch, bucket
):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path))
    for name in ("b.jsonl", "e.csv", "g.parquet"):
        read, due = (table.read_table(f"{place}/{name}", "data.path") for place in (there, folder))
        assert (read.rows, read.columns, read.fingerprint) == (
            due.rows,
            due.columns,
            due.fingerprint,
        )
    bucket.seen.clear()
    # again: the store is asked, and nothing is copied
    table.read_table(f"{there}/b.jsonl", "data.path")
    assert not [
        request
        for request in bucket.seen
        if "alt=media" in request or ("b.jsonl?" in request and "GET" in request)
    ]
    assert table.splits_of(there) == ()


def test_what_cannot_be_read_names_field_and_address(bucket, there):
    for path, message in (
        (
            f"{there}/nothing",
            rf"data.path: {there}/nothing: the bucket has no object of this name, and none below",
        ),
        (
            f"{there}/*.nothing",
            rf"data.path: {there}/\*.nothing: the bucket has no object of this name",
        ),
        (
            f"{bucket.url[:5]}elsewhere/a.txt",
            r"data.path: ..://elsewhere/a.txt: there is no bucket elsewhere",
        ),
    ):
        with pytest.raises(StorageError, match=message):
            open_source(DataConfig(path=path), TEXT)
    storage.write(f"{bucket.url}/bad/a.txt", b"\xff\xfe")
    with pytest.raises(
        ConfigError, match=rf"data.path='{bucket.url}/bad/a.txt': a.txt is not UTF-8 text"
    ):
        documents(f"{bucket.url}/bad/a.txt")
    storage.write(f"{bucket.url}/bad/a.jsonl.gz", gzip.compress(b"x" * 999)[:-9])
    with pytest.raises(ConfigError, match=r"a.jsonl.gz(:1)?:? (cannot be read|not JSON)"):
        documents(f"{bucket.url}/bad/a.jsonl.gz")
    storage.write(f"{bucket.url}/bad/a.parquet", b"PAR1 damaged")
    with pytest.raises(ConfigError, match=r"a.parquet: cannot be read"):
        documents(f"{bucket.url}/bad/a.parquet")
    storage.write(f"{bucket.url}/bad/b.txt", b"")
    with pytest.raises(ConfigError, match=r"b.txt': empty"):
        documents(f"{bucket.url}/bad/b.txt")


def test_failures_in_the_middle_of_a_stream_are_mended(there, bucket, folder, monkeypatch):
    monkeypatch.setattr(stores, "PAUSE", timedelta(milliseconds=1))
    monkeypatch.setattr(stores, "LONGEST_PAUSE", timedelta(milliseconds=20))
    stores._client.cache_clear()
    monkeypatch.setattr(remote, "BLOCK", 4096)
    source = open_source(DataConfig(path=f"{there}/b.jsonl"), TEXT)
    bucket.fail(503, times=4, on=r"GET .*(alt=media|b\.jsonl\?)")
    assert list(source.documents()) == documents(folder / "b.jsonl")
    assert not bucket.faults
    stores._client.cache_clear()
