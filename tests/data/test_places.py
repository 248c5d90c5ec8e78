"""Every piece of a training row is found at the file and line that is told of it, and every line in
its rows."""

import csv
import json
import re
from itertools import pairwise

import numpy as np
import pytest

from flaxformer_lite.data import source
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.places import Places
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.text.tokenizer import Bytes
from tests.objectives.tables import write_rows


def opened(cfg, number=0):
    """(dataset, places, records of a plan, texts of the pieces of each row)"""
    data = open_dataset(cfg)
    stream = data.sources[""]
    records = stream.open_plan(number)
    rows = (row_ids(records, row) for row in range(len(records)))
    texts = [[data.tokenizer.decode(ids) for ids in row] for row in rows]
    return data, Places(stream), records, texts


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe"])
def test_pieces_of_jsonl_are_in_their_lines_and_held_out_lines_in_no_row(
    experiment, jsonl, documents, tokenizer, number
):
    cfg = experiment(tokenizer=tokenizer)
    data, where, records, rows = opened(cfg, number)
    for row, texts in enumerate(rows):
        told = where.places(records, row)
        lines = [int(place.removeprefix(f"{jsonl}:")) for place in told]
        for text, line in zip(texts, lines, strict=True):
            assert text.strip("\ufffd") in documents[line - 1], "may be a part of a character"
            assert row % 50 or row in where.rows(records, f"{jsonl}:{line}")
    refused = {"documents.jsonl:121", "other.jsonl:3", "0123456789", "no such words"}
    held = data.sources[""].corpus.tokens["eval"]
    for begin, end in pairwise(held.offsets):
        text = data.tokenizer.decode(held.ids[begin : end - 1])
        refused.add(str(documents.index(text) + 1))
    for wanted in refused:
        assert not len(where.rows(records, wanted)), wanted


@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe", "words"])
def test_pieces_of_plain_text_begin_in_their_lines(experiment, tmp_path, documents, tokenizer):
    path = tmp_path / "one.txt"
    lines = [f"{text} äöü\n" for text in documents]
    path.write_text("".join(lines))
    cfg = experiment(path=str(path), tokenizer=tokenizer, tokens=500)
    _, where, records, rows = opened(cfg, 2)
    off = [0]
    for row, (text,) in enumerate(rows):
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
    cfg = experiment(path=str(path), tokenizer="byte_bpe", eval_path=str(path))
    data, where, records, _ = opened(cfg, 1)
    assert len(data.sources[""].corpus.tokens["train"].offsets) > 5
    for line in range(1, 121, 7):
        rows = where.rows(records, f"one.txt:{line}").tolist()
        # without the token with which the next row begins
        ids = [np.concatenate(row_ids(records, row))[:-1] for row in rows]
        assert documents[line - 1] in data.tokenizer.decode(np.concatenate(ids)), line
        assert len(rows) < len(records) / 10


@pytest.mark.parametrize("kind", ["csv", "tokens", "pairs"])
def test_rows_of_csv_and_of_pairs_and_tokens_of_a_file(experiment, tmp_path, documents, kind):
    path = tmp_path / {"csv": "t.csv", "tokens": "t.npy", "pairs": "t.jsonl"}[kind]
    ids = np.concatenate([[*Bytes().encode(text), Bytes().eos_id] for text in documents])
    pairs = [{"source": text[:60], "target": f"to {n}"} for n, text in enumerate(documents)]
    if kind == "csv":
        with path.open("w", newline="") as file:
            rows = ((str(n), text) for n, text in enumerate(documents))
            csv.writer(file).writerows([("id", "text"), *rows])
    elif kind == "tokens":
        np.save(path, ids)
    else:
        path.write_text("\n\n".join(map(json.dumps, pairs)))
    options = {"length": 64, "target_length": 16} if kind == "pairs" else {}
    objective = "seq2seq" if kind == "pairs" else "causal_lm"
    data, where, records, rows = opened(experiment(objective, path=str(path), **options))
    for row, texts in enumerate(rows):
        told = where.places(records, row)
        numbers = [int(re.split(r"\D", place)[-1]) for place in told]
        if kind == "csv":
            assert told[0] == f"{path}, row {numbers[0]}" and texts[0] in documents[numbers[0] - 1]
        elif kind == "tokens":
            assert told[0] == f"{path}, token {numbers[0]}"
            assert data.tokenizer.decode(ids[numbers[0] : numbers[0] + 40]).startswith(texts[0])
        else:
            assert told == [f"{path}:{number}" for number in numbers]
            assert texts == [text for n in numbers for text in pairs[n // 2].values()]
        assert row % 50 or row in where.rows(records, told[-1])


@pytest.mark.parametrize("packed", [True, False])
def test_examples_of_tasks_lead_to_rows_of_their_table_packed_or_not(experiment, tmp_path, packed):
    rows = [{"instruction": f"say {n}", "response": f"it is {n}"} for n in range(1, 61)]
    path = write_rows(tmp_path / "t.jsonl", rows)
    cfg = experiment("instruction", path=path, length=160, options={"packed": packed})
    data = open_dataset(cfg)
    where = Places(data.sources[""])
    records = data.records
    for row in range(len(records)):
        lines = [int(place.removeprefix(f"{path}:")) for place in where.places(records, row)]
        assert len(lines) > 1 or not packed or row == len(records) - 1
        text = data.tokenizer.decode(data.example(row, 0, 0)["inputs"]["input_ids"])
        assert re.findall(r"say (\d+)", text) == list(map(str, lines))
        for wanted in (str(lines[-1]), f"t.jsonl:{lines[-1]}"):
            assert where.rows(records, wanted).tolist() == [row]
    assert not len(where.rows(records, "no such words"))
