"""Tables in every form read alike; what cannot be read is one sentence that names the file and the
line."""

import gzip
import json
import os
import re

import pyarrow
import pyarrow.ipc
import pytest
from pyarrow import parquet

from flaxformer_lite.cli.predict import write_rows
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import columnar, rows as rows_of_tables
from flaxformer_lite.data.rows import open_table

ROWS = [
    {"text": 'one, "two"', "label": "yes"},
    {"text": "drei\nZeilen", "label": "no"},
    {"text": "ok", "label": "no"},
]


CSV = b'"text","label"\n"one, ""two""","yes"\n"drei\nZeilen","no"\n"ok","no"\n'
WRITTEN = {
    "t.csv": CSV,
    "t.csv.gz": gzip.compress(CSV),
    "t.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "t.json": json.dumps(ROWS).encode(),
    "data.json": json.dumps({"version": 1, "data": ROWS}).encode(),
}


@pytest.mark.parametrize("name", WRITTEN)  # others: test_documents.py
def test_every_form_of_text_reads_alike(tmp_path, name):
    (tmp_path / name).write_bytes(WRITTEN[name])
    read = open_table(str(tmp_path / name), "data.path")
    assert list(read.rows) == ROWS and read.columns == ("text", "label") and len(read) == 3


def test_rows_that_an_older_version_has_cached_are_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    path = tmp_path / "t.csv"
    path.write_bytes(CSV)
    current = rows_of_tables.FORMAT
    for version, due in (("older", ROWS), (current, ROWS)):
        monkeypatch.setattr(rows_of_tables, "FORMAT", version)
        read = open_table(str(path), "data.path", root=str(tmp_path / "cache"))
        assert read.is_stored and list(read.rows) == due
        for file in (tmp_path / "cache").glob("store-*/store.json"):
            file.write_bytes(b"of another form")
    assert len(list((tmp_path / "cache").glob("store-*/store.json"))) == 2


def test_lines_that_move_from_one_file_to_the_next_are_found_there(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    lines = [json.dumps(row) + "\n" for row in ROWS]
    for in_first in (1, 2):
        (tmp_path / "a.jsonl").write_text("".join(lines[:in_first]))
        (tmp_path / "b.jsonl").write_text("".join(lines[in_first:]))
        read = open_table(f"{tmp_path}/*.jsonl", "data.path", root=str(tmp_path / "cache"))
        assert read.is_stored and list(read.rows) == ROWS
        assert [read.rows.origin(row)[0] for row in range(3)] == [
            int(n >= in_first) for n in range(3)
        ]


def test_arrow_parquet_and_folders_of_datasets(tmp_path):
    numbered = pyarrow.table({"text": [row["text"] for row in ROWS], "label": [1, 0, 0]})
    label = {"_type": "ClassLabel", "names": ["no", "yes"]}
    names = {"info": {"features": {"text": {"_type": "Value"}, "label": label}}}
    kept = numbered.replace_schema_metadata({"huggingface": json.dumps(names)})
    parquet.write_table(kept, tmp_path / "t.parquet")
    saved = tmp_path / "saved"
    for split in ("train", "validation"):
        (saved / split).mkdir(parents=True)
        with pyarrow.ipc.new_stream(str(saved / split / "data.arrow"), kept.schema) as writer:
            writer.write_table(kept)
        (saved / split / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (saved / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    due = [{"text": row["text"], "label": int(row["label"] == "yes")} for row in ROWS]
    for path in ("t.parquet", "saved", "saved/train", "saved/train/data.arrow"):
        read = open_table(str(tmp_path / path), "data.path", "eval")
        assert list(read.rows) == due and read.names == {"label": ("no", "yes")}, path
    (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ConfigError, match=r"no split.*only train"):
        open_table(str(saved), "data.path", "eval")


def test_files_that_number_classes_differently_are_no_table(tmp_path):
    for name, classes in (("a", ["no", "yes"]), ("b", ["yes", "no"])):
        features = {"label": {"_type": "ClassLabel", "names": classes}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        written = pyarrow.table({"text": ["x", "y"], "label": [0, 1]})
        parquet.write_table(written.replace_schema_metadata(metadata), tmp_path / f"{name}.parquet")
    (tmp_path / "c.jsonl").write_text('{"text": "z", "label": 1}\n')
    read = open_table(f"{tmp_path}/c.jsonl,{tmp_path}/b.parquet", "data.path")
    assert read.names == {"label": ("yes", "no")}
    with pytest.raises(ConfigError, match=r"b.parquet numbers the classes of 'label' differently"):
        open_table(f"{tmp_path}/*.parquet", "data.path")


def test_names_of_classes_within_lists_and_objects():
    tags = {"_type": "ClassLabel", "names": ["O", "B-PER"]}
    features = {
        "older": [tags],
        "list": {"_type": "List", "feature": tags},
        "feature": tags,
        "object": {"label": tags, "text": {"_type": "Value"}},
        "objects": {"_type": "Sequence", "feature": {"label": [tags]}},
        "text": {"_type": "Value", "dtype": "string"},
    }
    due = dict.fromkeys(
        ("older", "list", "feature", "object.label", "objects.label"), ("O", "B-PER")
    )
    assert columnar.named(features) == due


def test_squads_own_file_has_a_row_per_question(tmp_path):
    answers = [{"text": "blue", "answer_start": 7}, {"text": "blue sky", "answer_start": 7}]
    asked = [{"id": "1", "question": "Colour?", "answers": answers}]
    article = {"title": "t", "paragraphs": [{"context": "A very blue sky.", "qas": asked}]}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [article]}))
    (row,) = open_table(str(tmp_path / "dev.json"), "data.path").rows
    assert row["answers"] == {"text": ["blue", "blue sky"], "answer_start": [7, 7]}
    assert row["question"] == "Colour?"


@pytest.mark.parametrize(
    "text",
    [
        '"tis good\t1\nso\t2\n',
        '"He said ""no"""\t0\n"tis good" so far\t1\n',
        # Whose quote another value seems to close.
        '"tis good\t1\nwhich he said"\t2\n',
    ],
)
def test_tabs_with_lone_quotes_are_text_with_a_notice(tmp_path, text, caplog):
    (tmp_path / "sst.tsv").write_text(f"sentence\tlabel\n{text}")
    read = open_table(str(tmp_path / "sst.tsv"), "data.path")
    due = [
        dict(zip(("sentence", "label"), line.split("\t"), strict=True))
        for line in text.splitlines()
    ]
    assert list(read.rows) == due and "data.path: quotes are read as text" in caplog.text


@pytest.mark.parametrize(("name", "encoding"), [("t.tsv", "utf-8"), ("t.txt", "utf-16")])
def test_tabs_with_closed_quotes_are_read_as_excel_writes_them(tmp_path, name, encoding):
    text = 'text\tlabel\r\n"He said ""no"""\ta\r\n"two\nlines"\tb\r\n"a\ttab"\t5" wide\r\n'
    (tmp_path / name).write_text(text, encoding=encoding, newline="")
    read = open_table(str(tmp_path / name), "data.path")
    rows = [('He said "no"', "a"), ("two\nlines", "b"), ("a\ttab", '5" wide')]
    assert [tuple(row.values()) for row in read.rows] == rows


def test_a_first_line_may_name_the_separator(tmp_path):
    (tmp_path / "t.csv").write_text("sep=;\ntext;label\na,b;x\n")
    assert list(open_table(str(tmp_path / "t.csv"), "data.path").rows) == [
        {"text": "a,b", "label": "x"}
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"text,label\na,b,c\n", ":2: 3 values, but the first line names 2 columns"),
        ("t.csv", b"sep=;\na;b\n1;2;3\n", ":3: 3 values, but the first line names 2 columns"),
        ("t.tsv", b'a\tb\n"open\t1\nx\n', ":3: 1 values, .* Quotes are read as text, as one"),
        ("t.csv", b"text,text\na,b\n", "two columns of the same name"),
        ("t.csv", b"text,label\n", "no rows in it"),
        ("t.csv", b"", "no rows in it"),
        ("t.csv", b'text,label\n"open,1\n', ":2: cannot be read"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n', ":2: not JSON"),
        ("t.json", b'{"rows": []}', "must hold a list of objects"),
        ("t.json", b"[" * 100_000, "not JSON"),
        ("t.csv.gz", b"text,label\n", "t.csv.gz cannot be read"),
        ("t.parquet", b"PAR1 not really", "cannot be read"),
        ("t.xlsx", b"PK", "save its sheet as 'CSV UTF-8'"),
        ("t.pdf", b"PK", "must be one of .csv, .tsv"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"^data\.path") as caught:
        open_table(str(tmp_path / name), "data.path")
    assert re.search(message, str(caught.value)) and "\n" not in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        open_table(str(tmp_path / "none.csv"), "data.path")
    with pytest.raises(ConfigError, match=r"data.path is no regular file.*write its content to a"):
        open_table(os.devnull, "data.path")


UNUSUAL = "a folder that datasets' save_to_disk did not write"
FEATURES = {"features": [1]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, UNUSUAL),
        ({"state.json": {"_data_files": 3}}, "_data_files=3: must be a list"),
        ({"state.json": {"_data_files": None}}, "no rows in it"),
        ({"state.json": {"_data_files": [3]}}, "/3: cannot be read"),
        ({"dataset_dict.json": {"splits": [1]}}, "has no split train or training, only 1"),
        ({"dataset_dict.json": {"splits": None}}, UNUSUAL),
        ({"state.json": {"_data_files": []}, "dataset_info.json": FEATURES}, "no rows in it"),
    ],
)
def test_a_folder_that_is_not_quite_that_of_datasets(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        open_table(str(tmp_path), "data.path")


def test_tabs_quotes_and_lines_of_predictions_are_read_back(tmp_path):
    table = [{"text": 'say "hi"\tthere\nand', "label": "x"}, {"text": "plain", "label": "y"}]
    write_rows(tmp_path / "t.tsv", table)
    assert list(open_table(str(tmp_path / "t.tsv"), "here").rows) == table
    write_rows(tmp_path / "t.tsv", table[1:])
    assert (tmp_path / "t.tsv").read_text() == "text\tlabel\nplain\ty\n"
