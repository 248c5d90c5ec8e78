"""Metrics of sentence-transformers, search in chunks, and files as people have them."""

import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.inference import retrieval
from tests.objectives.tables import write_rows

ROOT = Path(__file__).parents[1] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "retrieval.json").read_text())


def beir(folder):
    """Writes a folder of BEIR, in which half of the documents have titles."""
    (folder / "qrels").mkdir(parents=True)
    rows = []
    for number, (name, text) in enumerate(EXPECTED["corpus"].items()):
        title, _, rest = text.partition(" ") if number % 2 else ("", "", text)
        rows.append({"_id": name, "title": title, "text": rest})
    write_rows(folder / "corpus.jsonl", rows)
    queries = [{"_id": name, "text": text} for name, text in EXPECTED["queries"].items()]
    write_rows(folder / "queries.jsonl", queries)
    judged = ["query-id\tcorpus-id\tscore"]
    for query, documents in EXPECTED["relevant"].items():
        judged += [f"{query}\t{document}\t{1 + i}" for i, document in enumerate(documents)]
    judged.append("q11\td1\t0")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged))
    return folder


def evaluate(capsys, *args):
    main(["evaluate", "--model", str(ROOT / "mean_normalize"), *args, "--json"])
    return json.loads(capsys.readouterr().out)


def test_metrics_are_those_of_sentence_transformers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(retrieval, "DOCUMENT_CHUNK", 7)
    monkeypatch.setattr(retrieval, "QUERY_BLOCK", 4)
    data = beir(tmp_path / "beir")
    found = evaluate(capsys, "--data", str(data))
    assert (found.pop("queries"), found.pop("documents")) == (11, 40)
    assert 0 < found.pop("baseline")["tf-idf"] <= 1
    assert found == pytest.approx(EXPECTED["metrics"], abs=1e-9)
    named = evaluate(capsys, "--data", str(data / "qrels" / "test.tsv"), "--query_prompt", "three ")
    assert named["ndcg_10"] != found["ndcg_10"]


def test_rows_of_pairs_are_searched_among_all_answers_and_negatives(tmp_path, capsys):
    rows = [
        {"query": "zero one", "positive": "zero one", "negatives": ["four", "five six"]},
        {"query": "zero one", "positive": "seven"},
        {"query": "four", "positive": "four"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = evaluate(capsys, "--data", str(tmp_path / "rows.jsonl"), "--retrieval")
    assert (found["queries"], found["documents"]) == (2, 4)
    assert found["accuracy_1"] == found["mrr_10"] == found["recall_5"] == 1
    assert found["recall_1"] == 0.75  # one of the two answers of the first


def test_search_keeps_the_first_of_equals(monkeypatch):
    monkeypatch.setattr(retrieval, "DOCUMENT_CHUNK", 3)
    documents = np.asarray([[0.5], [1.0], [0.5], [1.0], [1.0], [0.0], [0.5]])

    def found(queries, count):
        read = lambda start, end: documents[start:end]  # noqa: E731
        product = lambda a, b: a @ b.T  # noqa: E731
        return retrieval.search(np.ones((queries, 1)), count, read, product, 5).rows_QK.tolist()

    assert found(2, 7) == [[1, 3, 4, 0, 2]] * 2
    assert found(1, 2) == [[1, 0]]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("qrels/test.tsv", "q0\td0\t1\nq1\td1\t1\n", "its first line lacks 'query-id'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td99\t1\n", "'d99' is not in corpus"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td1\thigh\n", "score='high' is not a"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nx\td1\t1\n", "no query of queries.jsonl"),
        ("corpus.jsonl", '{"id": "d0", "text": "zero"}\n', "row 1 must have _id and text"),
        ("queries.jsonl", None, "no queries.jsonl"),
        ("qrels/test.tsv", None, "has no qrels/test.tsv"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, capsys, file, text, message):
    data = beir(tmp_path / "beir")
    path = data / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(SystemExit):
        main(["evaluate", "--model", str(ROOT / "mean_normalize"), "--data", str(data)])
    assert message in capsys.readouterr().err
