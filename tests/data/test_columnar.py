"""Parquet and arrow files that are damaged, or made to exhaust memory."""

import gzip
import io
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, row_files
from flaxformer_lite.data.rows import open_table
from flaxformer_lite.storage import compressed

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

KINDS = {
    "text": ["a", "b", None],
    "label": [1, 0, 2],
    "words": [["one", "two"], [], None],
    "answer": [{"text": "a", "start": 0}, {"text": "b", "start": 1}, None],
    "raw": [b"1", b"2", b"3"],
}


def written(path, table):
    if path.suffix == ".parquet":
        parquet.write_table(table, path, compression="zstd")
    else:
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


def in_memory(path):
    """A stream, as of an object in a store."""
    return io.BytesIO(path.read_bytes())


@pytest.mark.parametrize("kind", columnar.KINDS)
def test_rows_are_those_of_the_table(kind, tmp_path, monkeypatch):
    table = pyarrow.table(KINDS)
    path = written(tmp_path / f"t{kind}", table)
    assert list(columnar.rows(path, "data.path", kind)) == table.to_pylist()
    monkeypatch.setattr(columnar, "MAX_HELD_BYTES", 2)  # one row at a time
    assert list(columnar.rows(path, "data.path", kind)) == table.to_pylist()
    chosen = list(columnar.rows(path, "data.path", kind, ("label",)))
    assert chosen == [{"label": label} for label in KINDS["label"]]


def test_each_flipped_bit_of_an_arrow_file_is_an_error_or_other_values(tmp_path):
    path = written(tmp_path / "t.arrow", pyarrow.table(KINDS))
    sound = path.read_bytes()
    for at in range(8, len(sound), 5):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        for content in (bytes(damaged), io.BytesIO(damaged)):  # the latter as from a store
            try:
                list(columnar.rows(content, "data.path", ".arrow"))
            except ConfigError as error:
                assert "data.path: cannot be read" in str(error)


@pytest.mark.parametrize("kind", columnar.KINDS)
def test_a_text_that_is_too_long_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(columnar, "MAX_VALUE_BYTES", 1000)
    fits = written(tmp_path / f"fits{kind}", pyarrow.table({"text": ["x" * 1000] * 30}))
    assert len(list(columnar.rows(fits, "data.path", kind))) == 30
    long = written(tmp_path / f"long{kind}", pyarrow.table({"text": ["x", "x" * 1001]}))
    with pytest.raises(ConfigError, match=r"data.path: a value of more.*cut its text"):
        list(columnar.rows(long, "data.path", kind))


@pytest.mark.nightly
def test_equal_texts_of_parquet_are_held_once(tmp_path):
    path = written(tmp_path / "t.parquet", pyarrow.table({"text": ["x" * 100_000] * 2000}))
    before = pyarrow.total_allocated_bytes()
    held = []
    for number, _ in enumerate(columnar.rows(path, "data.path", ".parquet")):
        if number % 500 == 0:
            held.append(pyarrow.total_allocated_bytes() - before)
    assert max(held) < 2 * columnar.MAX_HELD_BYTES  # the texts are 200 MB


def test_groups_of_parquet_that_unpack_to_more_than_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(columnar, "MAX_UNPACKED_BYTES", 1 << 18)
    texts = [f"{'x' * 10_000}{number}" for number in range(50)]  # 500 kB
    path = tmp_path / "t.parquet"
    options = {"compression": "zstd", "use_dictionary": False}
    parquet.write_table(pyarrow.table({"text": texts}), path, **options)
    with pytest.raises(ConfigError, match=r"data.path: .* unpacked to 5.*in smaller groups"):
        next(columnar.rows(path, "data.path", ".parquet"))
    parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=20, **options)
    assert [row["text"] for row in columnar.rows(path, "data.path", ".parquet")] == texts
    # what a text compresses to is read, as its file is as large
    parquet.write_table(pyarrow.table({"text": texts}), path, **options)
    monkeypatch.setattr(columnar, "MAX_UNPACKED_RATIO", 1e9)
    assert len(list(columnar.rows(path, "data.path", ".parquet"))) == 50


@pytest.mark.parametrize("content", [Path, in_memory])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_batches_of_arrow_that_unpack_to_more_than_the_memory_are_refused(
    compression, stream, content, tmp_path, monkeypatch
):
    monkeypatch.setattr(columnar, "MAX_UNPACKED_BYTES", 1 << 20)
    batch = pyarrow.table({"text": ["x" * 20_000] * 100, "label": ["a", "b"] * 50})
    coded = batch.set_column(1, "label", batch["label"].dictionary_encode())
    path = tmp_path / "t.arrow"
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with new(str(path), coded.schema, options=options) as writer:
        writer.write_table(coded.slice(0, 4))
        writer.write_table(coded)
    rows = columnar.rows(content(path), "data.path", ".arrow")
    if compression:
        with pytest.raises(ConfigError, match=r"data.path: .* unpacked to 2,.*write it anew"):
            list(rows)
        monkeypatch.setattr(columnar, "MAX_UNPACKED_BYTES", 1 << 22)
        rows = columnar.rows(content(path), "data.path", ".arrow")
    assert list(rows) == batch.slice(0, 4).to_pylist() + batch.to_pylist()


@pytest.mark.parametrize("encoding", sorted(columnar.DIFFERENCES))
def test_texts_that_are_encoded_by_differences_are_read(encoding, tmp_path):
    texts = [f"{'x' * 100}{number}" for number in range(300)]
    path = tmp_path / "t.parquet"
    options = {"use_dictionary": False, "column_encoding": {"text": encoding}}
    parquet.write_table(pyarrow.table({"text": texts}), path, **options)
    rows = list(columnar.rows(path, "data.path", ".parquet"))
    assert [row["text"] for row in rows] == texts


@pytest.mark.parametrize("name", ["t.parquet.gz", "t.json.gz"])
def test_what_must_be_unpacked_into_memory_is_bounded(name, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "MAX_UNPACKED_BYTES", 100)
    path = tmp_path / name
    path.write_bytes(gzip.compress(b'[{"text": "a"}]' + b" " * 1000))
    with pytest.raises(ConfigError, match=r"data.path: t.*unpacks.*unpack it first"):
        open_table(str(path), "data.path")


def test_a_line_that_is_too_long_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "MAX_LINE_CHARACTERS", 10)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\r\n" + b"x" * 1000))
    with pytest.raises(ConfigError, match=r"data.path:1:.*line.*cut its text"):
        list(row_files.read_lines(path, "data.path", ""))
    path.write_bytes(gzip.compress(b"a\rb\r\nc\n"))
    assert list(row_files.read_lines(path, "data.path", "")) == ["a\r", "b\r\n", "c\n"]


@pytest.mark.parametrize("kind", columnar.KINDS)
def test_a_tool_call_has_its_own_arguments_alone(kind, tmp_path):
    """The column has the arguments of all tools, and those of the others are null."""
    calls = [{"role": "a", "calls": [{"city": "Bern"}]}, {"role": "b", "calls": [{"zone": "CET"}]}]
    rows = [{"messages": [call]} for call in calls]
    path = written(tmp_path / f"t{kind}", pyarrow.Table.from_pylist(rows))
    assert list(columnar.rows(path, "data.path", kind)) == rows
