import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data.source import LONGEST, open_text
from tests.marks import daily

TEXT = ("text",)
GZIPPED = gzip.compress(b"text", mtime=0)  # the same bytes in every process, which name the test
PAIR = ("source", "target")


def read(path, fields=TEXT):
    return list(open_text(DataConfig(path=str(path)), fields).documents())


def test_a_folder_in_order_with_gz_and_jsonl_and_without_hidden_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\0")
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md.gz").write_bytes(gzip.compress(b"first", mtime=0))
    lines = [{"text": "third"}, {"text": "  "}, {"text": "fourth", "more": 1}]
    (tmp_path / "c.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    (tmp_path / "sub" / "d.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "fifth\\u2028"}', mtime=0)
    )
    (tmp_path / "sub" / "e.txt").write_text("\n \n")
    assert read(tmp_path) == [("first",), ("second",), ("third",), ("fourth",), ("fifth\u2028",)]


def test_of_a_folder_what_is_no_text_by_its_name_is_left_out_and_named(tmp_path):
    texts = ["README.MD", "a.txt", "code.py", "part.01", "wiki_00"]
    for name in (*texts, "w.bin", "y.json", "z.png"):
        (tmp_path / name).write_text(name)
    source = open_text(DataConfig(path=str(tmp_path)), TEXT)
    assert [d for (d,) in source.documents()] == texts
    assert source.kinds() == "5 files (1 .md, 1 .txt, 1 .py, 1 .01, 1 without suffix), 0.0 kB"
    why = "not read, as the suffixes are not that of text, jsonl or a table"
    assert source.unread() == f"w.bin, y.json, z.png: {why}"
    assert read(tmp_path / "y.json") == [("y.json",)], "a file that is named itself"
    (tmp_path / "pairs.jsonl").write_text('{"source": "one", "target": "eins"}\n')
    assert read(tmp_path, PAIR) == [("one", "eins")]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n' * 9)
    source = open_text(DataConfig(path=str(path)), TEXT)
    documents = source.documents()
    assert next(documents) == ("one",)
    with path.open("a") as file:
        file.write('{"text": "two"}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl has changed since it was opened; start again"):
        list(documents)


def test_a_folder_without_text_by_its_names(tmp_path):
    (tmp_path / "x.png").write_text("a,b")
    with pytest.raises(ConfigError, match=r"no file.*suffix.*\(\.png\)"):
        read(tmp_path)


@pytest.mark.parametrize("end", ["\n", "", "é", "日本"])
def test_a_large_file_is_several_documents_cut_at_lines_or_else_between_characters(
    tmp_path, monkeypatch, end
):
    monkeypatch.setattr("flaxformer_lite.data.source.LONGEST", 64)
    whole = "".join(f"line {n}{end}" for n in range(100))
    (tmp_path / "a.txt").write_text(whole)
    documents = [document for (document,) in read(tmp_path / "a.txt")]
    assert "".join(documents) == whole and len(documents) >= len(whole) // 64
    assert max(len(document.encode()) for document in documents) <= 64
    assert end != "\n" or all(document.endswith("\n") for document in documents)


@pytest.mark.parametrize("name", daily(["big.txt.gz", "big.jsonl.gz"], ["big.txt.gz"]))
def test_memory_does_not_grow_with_a_compressed_file(tmp_path, name):
    line = b"a line of text that is repeated\n" * 30_000
    line = line if "txt" in name else json.dumps({"text": line.decode()}).encode() + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(line * 50, 1, mtime=0))
    source = open_text(DataConfig(path=str(tmp_path / name)), TEXT)
    tracemalloc.start()
    try:
        assert sum(len(document) for (document,) in source.documents()) == 32 * 1_500_000
        assert tracemalloc.get_traced_memory()[1] < 2.5 * LONGEST
    finally:
        tracemalloc.stop()


def test_several_files_and_patterns(tmp_path):
    for name in ("b1.txt", "a.txt", "b0.txt", "c, d.txt", "day-1x=1.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.txt").write_text("e.txt")
    at = str(tmp_path)
    for path, names in (
        (f"{at}/b*.txt, {at}/a.txt,{at}/b0.txt", ["b0.txt", "b1.txt", "a.txt"]),  # none twice
        (f"{at}/a.txt,{at}/sub", ["a.txt", "e.txt"]),
        (f"{at}/**/e.txt", ["e.txt"]),
        (f"{at}/c, d.txt", ["c, d.txt"]),  # a name with a comma
        (f"{at}/day-?x=1.txt", ["day-1x=1.txt"]),  # a pattern, and no query of an address
    ):
        assert read(path) == [(name,) for name in names]
    assert len(read(f"{at}/*")) == 5, "files, not the folder"
    with pytest.raises(ConfigError, match=r"no keys or tokens.* In a pattern, write \* for \?"):
        read("gs://bucket/day-?x=1.txt")
    with pytest.raises(ConfigError, match=r"data\.path='.*x\*': no file matches '.*x\*'"):
        read(f"{at}/a.txt,{at}/x*")
    for path in (f"{at}/a.txt,{at}/x.txt", ",", " , ", "a" * 300):
        with pytest.raises(ConfigError, match=r"no such file or folder"):
            read(path)


def test_the_fingerprint_follows_the_content_not_the_place(tmp_path):
    marks = []
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / f"{name}.txt").write_text(text)
        cfg = DataConfig(path=str(tmp_path / f"{name}.txt"))
        marks.append(open_text(cfg, TEXT).fingerprint)
    assert marks[0] == marks[1] != marks[2]


OF_LINES = {
    "bad": (b'{"text": "a"}\n\n{"text": "b"\n', r":3: not JSON \(Expecting ',' delimiter, column"),
    "list": (b"[1]", ":1: a JSON list; must be an object"),
    "key": (b'{"content": "a"}', r"\(keys: 'content'\); set the field, .*text_field=content"),
    "type": (b'{"text": 3}', r":1: no text under 'text' \(not a string\)"),
    "lone": (rb'{"text": "\ud800"}', ":1: .*not valid Unicode"),
    "deep": (b'{"text": "a"}\n' + b"[" * 10**5, r":2: not JSON \(maximum recursion depth"),
    "digits": (b'{"n": ' + b"9" * 5000 + b"}", r":1: not JSON \(Exceeds the limit"),
    "long": (b'{"text": "a"}\n' + b"a" * (1 << 24) + b"a", ":2:.*line.*16 Mi characters"),
    "keys": (
        json.dumps({"a" * 99 + str(n): 1 for n in range(999)}).encode(),
        r":1: no text under 'text' \(keys: .{,300}\); this objective",
    ),
}
WHOLE = {
    "empty.txt": (b"", "'.*empty;.*set.*file"),
    "nul.dat": (b"text\0text", r" is binary \(a NUL byte at 4\)"),
    "latin.txt": ("grün".encode("latin-1"), r" is not UTF-8 text \(byte 0xfc at 2\)"),
    "broken.gz": (b"this is no gzip", r" cannot be read \(Not a gzipped file"),
    "short.gz": (gzip.compress(b"text" * 99, mtime=0)[:-9], " cannot be read"),
    "flipped.gz": (GZIPPED[:12] + b"\xff\xff" + GZIPPED[14:], " cannot be read"),
}
BAD = WHOLE | {f"{name}.jsonl": case for name, case in OF_LINES.items()}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data\.path=.*{name}.*{message}"):
        read(tmp_path / name)


def test_files_without_pairs(tmp_path):
    for name, content, message in (
        (
            "half.jsonl",
            '{"source": "a"}',
            ":1: no text under 'target'.*reads 'source' and 'target'",
        ),
        ("plain.txt", "text", ".*jsonl.*'source' and 'target'"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=name + message):
            read(tmp_path / name, PAIR)


def test_bad_places(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file or folder \(.* is there\)"):
        read(tmp_path / "nowhere.txt")
    with pytest.raises(ConfigError, match="no such file or folder; nor is"):
        read(tmp_path / "nowhere" / "at_all.txt")
    with pytest.raises(ConfigError, match="is no regular file"):
        read(os.devnull)
    with pytest.raises(ConfigError, match="a folder without files"):
        read(tmp_path)


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path, monkeypatch):
    (tmp_path / "read.txt").write_text("text")
    (tmp_path / "unread").mkdir()
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "unread":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)  # modes do not hold for root
    with pytest.raises(ConfigError, match=r"unread: cannot be read \(Permission denied"):
        read(tmp_path)


@pytest.mark.parametrize(
    "corpus, fields, message",
    [
        ("stdlib_code", PAIR, r"no source.*data\.corpus=code_docstrings"),
        (
            "code_docstrings",
            TEXT,
            "has no text; use data.corpus=stdlib_code or docstrings",
        ),
    ],
)
def test_a_corpus_of_the_wrong_kind(corpus, fields, message):
    with pytest.raises(ConfigError, match=message):
        open_text(DataConfig(corpus=corpus), fields)
