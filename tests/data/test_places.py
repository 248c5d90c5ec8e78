"""Every piece of a training row is found at the file and line that is told of it, and every line in
its rows."""

import csv
import json
import re
from itertools import pairwise

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.data import source
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.places import TablePlaces, TextPlaces
from flaxformer_lite.text.tokenizer import Bytes
from tests.objectives.tables import write_rows


def opened(cfg):
    data = open_dataset(cfg)
    return data, TextPlaces(data.corpus)


def pieces_of(data, number):
    """(records, row, texts of its pieces) of a plan."""
    records = data.open_plan(number)
    return [
        (records, row, [data.tokenizer.decode(ids) for ids in records.row(row)])
        for row in range(len(records))
    ]


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe"])
def test_pieces_of_jsonl_are_in_their_lines(experiment, jsonl, documents, tokenizer, number):
    data, where = opened(experiment(tokenizer=tokenizer))
    rows = pieces_of(data, number)
    for records, row, texts in rows:
        told = where.places(records, row)
        numbers = [int(place.removeprefix(f"{jsonl}:")) - 1 for place in told]
        assert len(texts) == len(numbers)
        for text, number in zip(texts, numbers, strict=True):
            assert text.strip("\ufffd") in documents[number], "a token may be a part of a character"
            assert row % 50 or row in where.rows(records, f"{jsonl}:{number + 1}")


@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe", "words"])
def test_pieces_of_plain_text_begin_in_their_lines(experiment, tmp_path, documents, tokenizer):
    path = tmp_path / "one.txt"
    lines = [f"{text} äöü\n" for text in documents]
    path.write_text("".join(lines))
    data, where = opened(experiment(path=str(path), tokenizer=tokenizer, tokens=500))
    off = [0]
    for records, row, (text,) in pieces_of(data, 2):
        (told,) = where.places(records, row)
        about = "~" * (tokenizer == "words")
        line = int(told.removeprefix(f"{path}:{about}"))
        if about:  # letters that are not in the vocabulary are lost
            named = re.search(r"document (\d+)", text)
            off += [abs(int(named[1]) + 1 - line)] if named else []
        else:
            near = "".join(lines[line - 1 :])[: len(lines[line - 1]) + len(text)]
            assert text.strip("\ufffd") in near
    assert max(off) <= 2


def test_a_line_of_plain_text_leads_to_its_rows(experiment, tmp_path, documents, monkeypatch):
    monkeypatch.setattr(source, "LONGEST", 8000)  # so that the file is several documents
    path = tmp_path / "one.txt"
    path.write_text("".join(f"{text}\n" for text in documents))
    data, where = opened(experiment(path=str(path), tokenizer="byte_bpe", eval_path=str(path)))
    records = data.open_plan(1)
    assert len(data.corpus.tokens["train"].offsets) > 5
    for line in range(1, 121, 7):
        rows = where.rows(records, f"one.txt:{line}").tolist()
        ids = [np.concatenate(records.row(row))[:-1] for row in rows]  # the next row begins with it
        assert documents[line - 1] in data.tokenizer.decode(np.concatenate(ids)), line
        assert len(rows) < len(records) / 10


@pytest.mark.parametrize(
    "wanted",
    ["one.txt:1000", "no such words"],
)
def test_what_is_not_there_is_one_sentence(experiment, wanted):
    data, where = opened(experiment())
    said = r"--document=.*not in the training.*data.path=.* held out; name a"
    with pytest.raises(ConfigError, match=said):
        where.rows(data.open_plan(0), wanted)


def test_a_held_out_line_is_refused(experiment, documents):
    data, where = opened(experiment())
    refused = set()
    for line in range(1, 121):
        try:
            where.rows(data.open_plan(0), f"documents.jsonl:{line}")
        except ConfigError:
            refused.add(documents[line - 1])
    held = data.corpus.tokens["eval"]
    assert refused == {
        data.tokenizer.decode(held.ids[a : b - 1]) for a, b in pairwise(held.offsets)
    }


@pytest.mark.nightly
def test_rows_of_csv_and_tokens_of_a_file(experiment, tmp_path, documents):
    table = tmp_path / "t.csv"
    ids = tmp_path / "t.npy"
    with table.open("w", newline="") as file:
        rows = ((str(n), text) for n, text in enumerate(documents))
        csv.writer(file).writerows([("id", "text"), *rows])
    np.save(ids, np.concatenate([[*Bytes().encode(text), Bytes().eos_id] for text in documents]))
    for path in (table, ids):
        data, where = opened(experiment(path=str(path)))
        records = data.open_plan(1)
        for row in range(len(records)):
            place, *_ = where.places(records, row)
            number = int(place.split()[-1])
            found = data.tokenizer.decode(records.row(row)[0])
            if path is table:
                assert place == f"{path}, row {number}" and found in documents[number - 1]
            else:
                assert place == f"{path}, token {number}"
                text = data.tokenizer.decode(np.load(ids)[number : number + 40])
                assert text.startswith(found)
            assert row % 50 or row in where.rows(records, place.replace(", row ", ":"))


def test_pairs_count_both_texts(experiment, tmp_path, documents):
    path = tmp_path / "pairs.jsonl"
    rows = [{"source": text[:60], "target": f"to {n}"} for n, text in enumerate(documents)]
    path.write_text("\n\n".join(map(json.dumps, rows)))
    data, where = opened(experiment("seq2seq", path=str(path), length=64, target_length=16))
    records = data.records
    for row in range(len(records)):
        told = where.places(records, row)
        texts = [data.tokenizer.decode(ids) for ids in records.row(row)]
        numbers = [int(place.removeprefix(f"{path}:")) for place in told]
        assert texts == [text for n in numbers for text in rows[n // 2].values()]
        assert row in where.rows(records, f"pairs.jsonl:{numbers[-1]}")


@pytest.mark.parametrize("packed", [True, False])
def test_examples_of_tasks_lead_to_rows_of_their_table_packed_or_not(experiment, tmp_path, packed):
    rows = [{"instruction": f"say {n}", "response": f"it is {n}"} for n in range(1, 61)]
    path = write_rows(tmp_path / "t.jsonl", rows)
    cfg = experiment("instruction", path=path, length=160, options={"packed": packed})
    data = open_dataset(cfg)
    where = TablePlaces(DataConfig(path=path))
    records = data.records
    for example in range(len(records)):
        places = where.places(records, example)
        numbers = [int(place.removeprefix(f"{path}, row ")) for place in places]
        assert len(numbers) > 1 or not packed or example == len(records) - 1
        text = data.tokenizer.decode(data.example(example, 0, 0)["inputs"]["input_ids"])
        assert re.findall(r"say (\d+)", text) == list(map(str, numbers))
        for wanted in (str(numbers[-1]), f"t.jsonl:{numbers[-1]}"):
            assert where.rows(records, wanted).tolist() == [example]
    with pytest.raises(ConfigError, match="or it is held out; name one"):
        where.rows(records, "no such words")
