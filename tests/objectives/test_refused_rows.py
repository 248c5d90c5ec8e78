"""Rows that a task cannot learn from are refused in a sentence that names the row."""

import pytest

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data.table_examples import open_labelled
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.dpo import Dpo
from flaxformer_lite.objectives.tables.instruction import Instruction
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering
from flaxformer_lite.objectives.tables.reranking import Reranking
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.objectives.tables.tagging import Tagging
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.objectives.tables.text_to_text import TextToText
from tests.objectives import tables

LABELLED = {"text": "b", "label": "y"}
TAGGED = {"tokens": "a b", "tags": "X Y"}
CHOICES = {"question": "q", "choices": ["a", "b"], "label": 0}
ANSWER = {"question": "q", "context": "a", "answers": "a"}
PAIR = {"anchor": "a", "positive": "b"}
PASSAGE = {"query": "a", "passage": "b", "label": 1}
CHAT = {"prompt": "a", "response": "b"}
PREFERENCE = {"prompt": "a", "chosen": "b", "rejected": "c"}
LANGUAGES = {"translation": {"en": "a", "fr": "b", "de": "c"}}
ONE, OTHER = ({"text": "a", "label": name} for name in "xy")
LEARNED = {  # task -> (rows, message)
    Classification(): [
        ([ONE], "there is nothing to learn from one"),
        ([], "no rows in it"),
        ([{"text": 3, "label": "x"}, LABELLED], "row 1: text=3 is not a text"),
        ([{"text": "a", "label": None}, LABELLED], "row 1 has no label"),
        ([LABELLED | {"label": ["x"]}, LABELLED], r"label=\['x'\] is a list.*kind=multiple"),
        ([LABELLED | {"label": '["x", "y"]'}, LABELLED], "is a list.*kind=multiple"),
        ([LABELLED | {"label": {"name": "x"}}, LABELLED], r"is an object.*label=COLUMN\.KEY"),
        (
            [LABELLED | {"label": label} for label in ("x, z", "z", "y", "x;y", "y;x")],
            "'x;y' looks like several of the others; .*kind=multiple",
        ),
    ],
    Classification(kind="multiple"): [
        ([LABELLED | {"label": "['x', 'y']"}], "row 1: .* must be a list of names, its JSON"),
        ([LABELLED | {"label": [{"name": "x"}]}], "row 1: .* must be a list of names"),
        (
            [LABELLED | {"label": label} for label in ("Rome, Italy;Oslo", "Rome, Italy")],
            "the labels 'Rome, Italy;Oslo' and 'Rome, Italy' have different separators",
        ),
        ([LABELLED | {"label": [0, 0, 1]}, LABELLED], "write the names of those that are 1"),
        ([LABELLED | {"label": hot} for hot in ([0, 1], [1, 0])], "all rows have the same labels"),
    ],
    Classification(class_weights=(1.0,)): [([ONE, OTHER], "1 weights for 2")],
    Classification(kind="number"): [([ONE, OTHER], "'x' is not a number")],
    Classification(labels=("x", "z")): [([ONE, OTHER], "no training row has the label 'y'")],
    Tagging(): [
        ([TAGGED | {"tags": ["X"]}, TAGGED], "row 1: 2 tokens, but 1 tags"),
        ([TAGGED | {"tags": "X X"}], "all words have the tag 'X'"),
        ([{"tokens": [], "tags": []}], "no row has words"),
        ([TAGGED | {"tags": None}], "row 1 has no tags; remove it"),
        ([TAGGED | {"tokens": 7}], r"row 1: tokens='7'.*neither"),
        ([TAGGED | {"tags": "['X', 'Y']"}], r"row 1: tags=.*neither"),
        ([TAGGED | {"tags": [1.5, 2]}], r"row 1: tags='\[1.5, 2\]'.*neither"),
        ([{"tokens": ["\ud800"], "tags": ["X"]}, TAGGED], "row 1: tokens is not valid Unicode"),
    ],
    MultipleChoice(): [
        ([CHOICES | {"choices": None}], "row 1: needs two choices or more"),
        ([CHOICES | {"choices": ["a"]}], r"needs two choices or more, .* not \"\['a'\]\""),
        ([CHOICES | {"choices": "a b"}], "needs two choices or more"),
        ([CHOICES | {"label": 2}], "row 1: label='2' is none of its 2 choices"),
        ([CHOICES | {"label": ""}], "row 1 has no label; .*data.drop_incomplete"),
        ([CHOICES | {"label": None}], "row 1 has no label; remove it"),
        ([CHOICES | {"question": 7}], "row 1: question=7 is not a text"),
        ([CHOICES | {"choices": ["\ud800", "b"]}], "row 1: choice is not valid Unicode"),
    ],
    MultipleChoice(choices=2): [
        (
            [CHOICES | {"choices": ["a", "b", "c"]}],
            "row 1: 3 choices, more than objective.choices=2",
        )
    ],
    QuestionAnswering(): [
        ([ANSWER | {"question": 7}], "row 1: question=7 is not a text"),
        ([ANSWER | {"context": None}], "row 1 has no context; .*data.drop_incomplete"),
        ([ANSWER | {"answers": None}], "row 1 has no answers; remove it"),
        ([ANSWER | {"answers": "b"}], r"row 1:.*not have the answer.*'b'"),
        ([ANSWER | {"answers": ""}], "no question has an answer"),
    ],
    Reranking(): [
        ([PASSAGE | {"label": 2}], "row 1: label=2 must be from 0 to 1"),
        ([PASSAGE | {"label": "yes"}], "row 1: label='yes' is not a number"),
        ([PASSAGE | {"label": None}], "row 1 has no label"),
    ],
    SentenceEmbeddings(): [
        ([PAIR | {"positive": 3}], "row 1: positive=3 is not a text"),
        ([PAIR | {"negatives": [1]}], "row 1: negatives=1 is not a text"),
        ([PAIR | {"score": 1}], "have a score, .*objective.kind=scores"),
    ],
    SentenceEmbeddings(kind="scores"): [
        ([PAIR], r"row 1.*no score.*objective.kind=scores learns from"),
        ([PAIR | {"score": "high"}], "row 1: score='high' is not a number"),
    ],
    Dpo(): [
        ([PREFERENCE | {"prompt": None}], "row 1: has no prompt"),
        (
            [PREFERENCE | {"rejected": [{"role": "model", "content": "a"}]}],
            "row 1: rejected ends with a turn of 'model'",
        ),
        ([PREFERENCE | {"chosen": 3}], "row 1: chosen=3 must be a text, or a list of"),
    ],
    TextToText(): [
        ([{"source": "a", "target": 3}], "row 1: target=3 is not a text"),
        ([LANGUAGES], r"row 1:.*languages.*name two"),
        ([{"source": "a", "target": "\ud800"}], "row 1: target is not valid Unicode"),
    ],
    Instruction(): [
        ([{"response": "a"}, CHAT], "row 1: has no messages or prompt"),
        ([{"messages": [{"role": "user"}]}], "row 1: messages=.* must be a text, or a list of"),
        ([{"messages": "[{"}], r"row 1: messages.*JSON"),
        ([{"messages": "[\n {"}], r"row 1: messages.*JSON"),
        ([{"messages": '[{"a":' * 100_000}], r"row 1: messages.*JSON"),
        ([CHAT | {"prompt": 3}], "row 1: prompt=3 is not a text"),
        ([CHAT | {"response": 3}], "row 1: response=3 is not a text"),
    ],
}


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [(task, rows, message) for task, cases in LEARNED.items() for rows, message in cases],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else None,
)
def test_rows_that_cannot_be_learned_are_refused_in_a_sentence(tmp_path, task, rows, message):
    path = tables.write_rows(tmp_path / "rows.jsonl", rows)
    words = TokenizerConfig(name="bytes")
    cfg = DataConfig(path=path, eval_path=path, tokenizer=words, cache=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=message):
        open_labelled(cfg, task, task.skeletons[0])
