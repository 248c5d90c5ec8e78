"""Parquet and arrow files that are damaged, or made to exhaust memory."""

import gzip

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, text_encoding

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
        with (
            pyarrow.OSFile(str(path), "wb") as file,
            pyarrow.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", columnar.KINDS)
def test_rows_are_those_of_the_table(kind, tmp_path, monkeypatch):
    table = pyarrow.table(KINDS)
    path = written(tmp_path / f"t{kind}", table)
    assert list(columnar.rows(path, "data.path", kind)) == table.to_pylist()
    monkeypatch.setattr(columnar, "HELD", 2)  # one row at a time
    assert list(columnar.rows(path, "data.path", kind)) == table.to_pylist()
    chosen = list(columnar.rows(path, "data.path", kind, ("label",)))
    assert chosen == [{"label": label} for label in KINDS["label"]]


def test_each_flipped_bit_of_an_arrow_file_is_an_error_or_other_values(tmp_path):
    path = written(tmp_path / "t.arrow", pyarrow.table(KINDS))
    sound = path.read_bytes()
    for at in range(8, len(sound), 5):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        try:
            list(columnar.rows(bytes(damaged), "data.path", ".arrow"))
        except ConfigError as error:
            assert "data.path: cannot be read" in str(error)


@pytest.mark.parametrize("kind", columnar.KINDS)
def test_a_text_that_is_too_long_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(columnar, "LONGEST", 1000)
    fits = written(tmp_path / f"fits{kind}", pyarrow.table({"text": ["x" * 1000] * 30}))
    assert len(list(columnar.rows(fits, "data.path", kind))) == 30
    long = written(tmp_path / f"long{kind}", pyarrow.table({"text": ["x", "x" * 1001]}))
    with pytest.raises(ConfigError, match=r"data.path: a value of more than .*cut its text"):
        list(columnar.rows(long, "data.path", kind))


def test_equal_texts_of_parquet_are_held_once(tmp_path):
    path = written(tmp_path / "t.parquet", pyarrow.table({"text": ["x" * 100_000] * 2000}))
    before = pyarrow.total_allocated_bytes()
    held = []
    for number, _ in enumerate(columnar.rows(path, "data.path", ".parquet")):
        if number % 500 == 0:
            held.append(pyarrow.total_allocated_bytes() - before)
    assert max(held) < 2 * columnar.HELD  # the texts are 200 MB


def test_a_line_that_is_too_long_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_encoding, "LONGEST", 10)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\r\n" + b"x" * 1000))
    with pytest.raises(ConfigError, match=r"data.path:1: a line of more than .*cut its text"):
        list(text_encoding.lines(path, "data.path", ""))
    path.write_bytes(gzip.compress(b"a\rb\r\nc\n"))
    assert list(text_encoding.lines(path, "data.path", "")) == ["a\r", "b\r\n", "c\n"]
