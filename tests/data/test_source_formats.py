"""A document a row, whatever the form and the compression; what cannot be read is one sentence."""

import gzip
import io
import json
import sys

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, source

ROWS = [
    {"id": "1", "text": 'one, "two"'},
    {"id": "2", "text": "drei\nZeilen, größer"},
    {"id": "3", "text": "end"},
]
DUE = [(row["text"],) for row in ROWS]


def csv_of(separator, rows=ROWS):
    quote = lambda value: '"' + value.replace('"', '""') + '"'  # noqa: E731
    lines = [rows[0], *(row.values() for row in rows)]
    return "".join(separator.join(map(quote, values)) + "\r\n" for values in lines)


def columns_of(name, rows=ROWS):
    table = pyarrow.Table.from_pylist(rows)
    sink = io.BytesIO()
    if name == "parquet":
        pyarrow.parquet.write_table(table, sink, row_group_size=2)
    else:
        made = pyarrow.ipc.new_file if name == "file" else pyarrow.ipc.new_stream
        with made(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2 if name == "file" else None)
    return sink.getvalue()


FORMS = {
    "t.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "t.csv": csv_of(",").encode("utf-8-sig"),
    "semicolons.csv": csv_of(";").encode(),
    "t.tsv": csv_of("\t").encode(),
    "t.parquet": columns_of("parquet"),
    "file.arrow": columns_of("file"),
    "stream.arrow": columns_of("stream"),
}
PACKED = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def read(path, fields=("text",)):
    return list(source.open_source(str(path), "data.path", fields=fields).documents())


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_reads_alike(tmp_path, name, packed, monkeypatch):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 2)
    path = tmp_path / (name + packed)
    path.write_bytes(PACKED[packed](FORMS[name]))
    assert read(path) == DUE
    assert read(path, ("id", "text")) == [(row["id"], row["text"]) for row in ROWS]


def test_text_may_be_compressed_in_several_frames(tmp_path):
    for name, pack in PACKED.items():
        path = tmp_path / f"a.txt{name}"
        path.write_bytes(pack(b"first\n") + pack("zweite Hälfte\n".encode()))
        assert read(path) == [("first\nzweite Hälfte\n",)]


def test_a_row_without_a_value_is_blank(tmp_path):
    (tmp_path / "t.parquet").write_bytes(columns_of("parquet", [{"text": "a"}, {"text": None}]))
    assert read(tmp_path / "t.parquet") == [("a",)]


def test_only_the_columns_that_are_needed_are_read(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(FORMS["t.parquet"])
    texts = [{"text": row["text"]} for row in ROWS]
    for column, due in (("text", texts), ("other", ROWS)):
        assert list(columnar.rows(path, "", ".parquet", [column])) == due


BAD = [
    ("t.csv", b"id,body\n1,text\n", r", row 1: .* \(keys: 'id', 'body'\); set the field, .*=body"),
    ("t.parquet", columns_of("parquet", [{"body": "a"}]), ", row 1: .*text_field=body"),
    ("t.arrow", columns_of("file", [{"text": 3}]), r", row 1: .*'text' \(not a string\)"),
    ("t.csv", b'text\n"a\nb\n', ":3: .*unexpected end of data.*begins in line 2;"),
    ("t.csv", "text\ngrün\n".encode("latin-1"), ":2: not UTF-8.*it reads .grün"),
    ("t.csv", b"text\n" + b"a" * (1 << 24) + b"bc", ":2: a line of more than 16 Mi char"),
    ("t.arrow", FORMS["stream.arrow"][:-70], r": cannot be read \("),
    ("t.parquet.zst", b"no zstd", r" cannot be read \(ZSTD decompress failed"),
    ("t.txt.zst", PACKED[".zst"](b"text" * 99)[:-5], r" cannot be read \(Truncated"),
    ("t.csv.gz", PACKED[".gz"](b"text\na\n")[:-9], r" cannot be read \("),
    ("t.jsonl.gz", b"no gzip", r" cannot be read \(Not a gzipped file"),
]


@pytest.mark.parametrize("name, content, message", BAD)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name + message):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["t.parquet", "t.txt.zst"])
def test_without_pyarrow_the_sentence_says_how_to_get_it(tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(b"...")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow: pip install '\w+\[tables\]'"):
        read(tmp_path / name)
