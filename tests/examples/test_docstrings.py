import json
import random

from examples import docstrings
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from tests.objectives import learned

RETURNED = {"What does add return?": "Their sum."}
NUMPY = """Adds things. Slowly.

Parameters
----------
a : int
    The first. Not
    the second.

Returns
-------
total : int
    Their sum.
"""
GOOGLE = """Adds things.

Args:
  a: the first
    of two.

Returns:
  Their sum.

Raises:
  ValueError: they differ.
"""


def asked(text):
    rows = docstrings.questions("add(a, b)", text, random.Random(1))
    return {row["question"]: row["answers"] for row in rows if row["answers"]}


def test_questions_of_both_styles():
    assert asked(NUMPY) == RETURNED | {"What is a, an argument of add?": "The first."}
    assert asked(GOOGLE) == RETURNED | {
        "What is a, an argument of add?": "the first of two.",
        "When does add raise ValueError?": "they differ.",
    }


def test_both_files_are_tables_of_their_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "PACKAGES", ("optax",))
    for kind, task in (
        ("questions", QuestionAnswering()),
        ("choices", MultipleChoice()),
        ("pairs", SentenceEmbeddings()),
    ):
        monkeypatch.setattr("sys.argv", ["docstrings", kind, str(tmp_path / kind), "--rows", "60"])
        docstrings.main()
        texts = [(tmp_path / kind / f"{name}.jsonl").read_text() for name in ("train", "dev")]
        train, dev = ([json.loads(line) for line in text.splitlines()] for text in texts)
        assert len(train) == 54 and len(dev) == 6
        assert len(learned.encoded(task, dev, tmp_path, length=64, fit=False)[1]) >= 6
