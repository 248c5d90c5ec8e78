"""Each kind of task learns what its rows tell, beats its baseline and predicts new rows; a mesh
computes the same."""

import random

import numpy as np
import pytest

from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering
from flaxformer_lite.objectives.tables.reranking import Reranking
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.objectives.tables.tagging import Tagging
from tests.objectives import learned, tables
from tests.runs.test_report import run_as_printed


def kinds(count):
    """A question names a kind of word, and one of the choices, three or two, is of that kind."""
    draw = random.Random(0)
    rows = []
    words = {"red": ["r1", "r2"], "blue": ["b1", "b2"], "green": ["g1", "g2"]}
    for _ in range(count):
        order = draw.sample(sorted(words), k=draw.choice([2, 3]))
        asked = draw.choice(order)
        choices = [draw.choice(words[kind]) for kind in order]
        rows.append({"question": asked, "choices": choices, "label": order.index(asked)})
    return rows


def colours(count, *, unanswerable=False):
    """Contexts with a red and a blue thing, of which the question asks for one; some lack it."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        things = {"red": draw.choice(["r1 r2", "r3"]), "blue": draw.choice(["b1 b2", "b3"])}
        asked = draw.choice(["red", "blue"])
        answer = things[asked]
        if unanswerable and draw.random() > 0.6:
            del things[asked]
        parts = [*things.values(), *draw.choices("xyz", k=8)]
        draw.shuffle(parts)
        answer = answer if asked in things else ""
        rows.append({"question": asked, "context": " ".join(parts), "answers": answer})
    return rows


def entities(count):
    """Sentences in which "up" or "down" somewhere says what kind of thing the word x is."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        words = draw.choices("abcdx", k=5) + ["x", way := draw.choice(["up", "down"])]
        draw.shuffle(words)
        tags = [f"B-{way}" if word == "x" else "O" for word in words]
        rows.append({"tokens": words, "tags": tags})
    return rows


def matches(count):
    """A query names a word, and the first of its four passages holds the partner of that word."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        words = draw.sample(range(4), 4)
        query = f"q{words[0]} n{number}"
        for word in words:
            rows.append({"query": query, "passage": f"p{word}", "label": int(word == words[0])})
    return rows


def synonyms(count, scored=False):
    """Word i of one language is word i of the other; a pair of others has score 0."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        i = draw.randrange(12)
        j = draw.randrange(12)
        if scored:
            other = j if draw.random() < 0.5 else i
            rows.append({"anchor": f"a{i}", "positive": f"b{other}", "score": float(other == i)})
        else:
            rows.append({"anchor": f"a{i} a{j}", "positive": f"b{j} b{i}"})
    return rows


QUESTIONS = (QuestionAnswering(stride=4), "answers", {"f1": 0.9, "exact": 0.85}, 0.7)
TAGS = (Tagging(), "tags", {"f1": 0.95, "accuracy": 0.95}, 0.8)
CHOICES = (MultipleChoice(), "label", {}, 0.6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "rows", "family", "sizes"),
    [
        (QUESTIONS, colours(400, unanswerable=True), "bert", {"length": 14, "steps": 300}),
        (QUESTIONS, colours(400), "gpt2", {"length": 14, "steps": 300}),
        (QUESTIONS, colours(400), "t5", {"length": 14, "steps": 600}),
        (TAGS, entities(400), "bert", {}),
        (TAGS, entities(400), "t5", {}),
        (CHOICES, kinds(500), "bert", {"length": 6, "steps": 300}),
    ],
)
def test_a_task_is_learned_and_predicts(tmp_path, capsys, case, rows, family, sizes):
    task, answer, scores, least = case
    found, baseline, workdir = learned.learn(tmp_path, task, rows, family, **sizes)
    run_as_printed(capsys.readouterr().out, {"predict"}, capsys)
    assert found[task.fit(rows, {}).shown[0].name] > baseline + 0.25
    assert all(found[name] > score for name, score in scores.items())
    new = [{name: x for name, x in row.items() if name != answer} for row in rows[-20:]]
    told = learned.predict(workdir, tables.write_rows(tmp_path / "new.jsonl", new))
    right = [one["prediction"] == row[answer] for one, row in zip(told, rows[-20:], strict=True)]
    assert np.mean(right) > least
    assert all(0 < one.get("probability", 1) <= 1 for one in told)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_reranking_learns_which_passage_answers(tmp_path, family):
    found, baseline, workdir = learned.learn(
        tmp_path, Reranking(), matches(100), family, length=8, steps=200
    )
    assert found["mrr"] > baseline + 0.3
    told = learned.predict(workdir, tmp_path / "eval.jsonl")
    scores = np.asarray([one["prediction"] for one in told])
    right = np.asarray([row["label"] for row in matches(100)[-len(told) :]]) > 0
    assert scores[right].mean() > scores[~right].mean() + 0.1


@pytest.mark.nightly  # one step of a run: tests/pretrained/test_sentences.py
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_sentence_embeddings_learn_which_texts_belong_together(tmp_path, family):
    task = SentenceEmbeddings(sizes=(8,))
    last, _, workdir = learned.learn(tmp_path, task, synonyms(300), family, length=6, steps=60)
    first = tables.read_split(workdir)[0]
    assert last["mrr"] > 0.6 > first["mrr"] + 0.3 and last["mrr_8"] > 0.5
    trained = learned.open_trained(workdir)
    new = tables.write_rows(tmp_path / "new.jsonl", synonyms(300, scored=True)[:40])
    data = learned.open_file(trained, new)
    found, predictions = trained.evaluate(data)
    assert found["spearman"] > 0.5 and "mrr" not in found
    told = [one["similarity"] for one in data.objective.decode(predictions, data.records)]
    alike = [one for one, row in zip(told, data.records.rows, strict=True) if row["score"]]
    assert np.mean(alike) > np.mean(told) + 0.1


@pytest.mark.nightly
def test_sentence_embeddings_learn_scores(tmp_path):
    task = SentenceEmbeddings(kind="scores")
    rows = synonyms(300, scored=True)
    assert learned.learn(tmp_path, task, rows, length=4, steps=60)[0]["spearman"] > 0.5


CUT = [{"data": 2, "context": 2}, {"fsdp": 2, "tensor": 2}]


@pytest.mark.nightly  # of the same step over devices, tests/training/test_step.py
@pytest.mark.parametrize(
    ("task", "rows", "meshes"),
    [
        (MultipleChoice(), kinds(60), [*CUT, {"data": 2, "mode": "pmap"}]),
        (SentenceEmbeddings(), synonyms(60), [*CUT, {"data": 2}]),  # negatives of the whole batch
    ],
)
def test_a_mesh_computes_the_same(tmp_path, task, rows, meshes):
    one, *others = learned.losses_on_meshes(tmp_path, task, rows, meshes, length=6)
    assert others == pytest.approx([one] * 3, rel=1e-4)
