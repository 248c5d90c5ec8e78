"""Tables as the examples of a task."""

import json
from dataclasses import dataclass, replace

import jax
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data import digests, encoding, open_tokenizer, rows as rows_of_tables
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.data.table_examples import fingerprint_rows, open_labelled, open_rows
from flaxformer_lite.objectives.rows import StoredColumn
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.dpo import Dpo
from flaxformer_lite.objectives.tables.instruction import Instruction
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering
from flaxformer_lite.objectives.tables.reranking import Reranking
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.objectives.tables.tagging import Tagging
from flaxformer_lite.objectives.tables.task import Column
from flaxformer_lite.objectives.tables.text_to_text import TextToText
from flaxformer_lite.text import tokenizer
from tests.objectives.tables import write_rows


def opened(folder, task, rows, *, skeleton="encoder", **options):
    """Opens rows of jsonl; returns the task, its records and what is said of them."""
    path = write_rows(folder / "rows.jsonl", rows)
    options = {"tokenizer": TokenizerConfig(name="bytes"), "eval_fraction": 0.3, **options}
    data = DataConfig(path=path, cache=str(folder / "cache"), **options)
    return open_labelled(data, task, skeleton)


def examples(task, records):
    made = [task.make_example(records, i, np.random.default_rng(0)) for i in range(len(records))]
    return [(path, x) for path, x in jax.tree_util.tree_leaves_with_path(made)]


def baseline(task, splits):
    data = Dataset("eval", task, splits, fingerprint="")
    return task.baseline(data, task.fit_baseline(data))


TEXTS = [f"row {i} of {'many ' * (i % 4)}" for i in range(40)]
LISTS = [t.split() for t in TEXTS]
STORED = {
    "single": (Classification(), lambda i, t: {"text": t, "label": "ab"[len(t) % 2]}),
    "multiple": (
        Classification(kind="multiple"),
        lambda i, t: {"text": t, "second": t[:3], "label": ["a", "b"][: i % 3]},
    ),
    "tags": (Tagging(), lambda i, t: {"tokens": LISTS[i], "tags": ["O"] * 2 + LISTS[i][2:]}),
    "answers": (
        QuestionAnswering(stride=4),
        lambda i, t: {"question": "which", "context": t * 9, "answers": t[:5]},
    ),
    "choices": (
        MultipleChoice(),
        lambda i, t: {"question": t, "choices": ["a", "bc", t][: 2 + i % 2], "label": 0},
    ),
    "sentences": (
        SentenceEmbeddings(),
        lambda i, t: {"anchor": t[:9], "positive": t, "negatives": TEXTS[: i % 3]},
    ),
    "ranks": (Reranking(), lambda i, t: {"query": t[:7], "passage": t, "label": i % 2}),
    "pairs": (TextToText(scored_by="none"), lambda i, t: {"source": t, "target": t[4:]}),
    "chats": (Instruction(), lambda i, t: {"prompt": t, "response": t[4:]}),
    "preferences": (Dpo(), lambda i, t: {"prompt": t, "chosen": t[1:], "rejected": t[4:]}),
}


@pytest.mark.parametrize("name", STORED)
def test_a_large_table_is_read_from_files_and_gives_the_same_examples(tmp_path, monkeypatch, name):
    task, make_row = STORED[name]
    rows = [make_row(i, text) for i, text in enumerate(TEXTS)]
    skeleton = "encoder" if "encoder" in task.skeletons else task.skeletons[0]
    due, in_memory, said = opened(tmp_path, task, rows, skeleton=skeleton)
    assert in_memory["eval"].store.folder is None
    beaten = baseline(due, in_memory)
    before = fingerprint_rows(DataConfig(), due, in_memory)
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    monkeypatch.setattr(encoding, "MAX_ROWS", 3)
    monkeypatch.setattr(encoding, "PART_ROWS", 7)
    for _ in range(2):
        fitted, mapped, told = opened(tmp_path, task, rows, skeleton=skeleton)
        assert fitted == due and told == said
        assert fingerprint_rows(DataConfig(), fitted, mapped) == before
        for split, records in mapped.items():
            same = in_memory[split]
            assert list(records.rows) == list(same.rows)
            assert records.sizes.tolist() == same.sizes.tolist()
            assert records.table_rows.tolist() == same.table_rows.tolist()
            for one, other in zip(examples(due, same), examples(due, records), strict=True):
                assert one[0] == other[0] and one[1].dtype == other[1].dtype
                assert np.array_equal(one[1], other[1]), one[0]
        assert mapped["eval"].store.folder is not None
        assert baseline(fitted, mapped) == beaten
        monkeypatch.setattr(type(task), "encode", None)  # nothing is encoded at the second start


@pytest.mark.parametrize("most, seen", [(10**6, 40), (400, 8)])
def test_only_a_sample_of_a_large_table_trains_the_tokenizer(tmp_path, monkeypatch, most, seen):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    monkeypatch.setitem(open_tokenizer.tokenizer_training.MOST, "byte_bpe", most)
    given = []
    train = lambda cfg, texts: given.extend(texts) or tokenizer.Bytes()  # noqa: E731
    monkeypatch.setattr(open_tokenizer.tokenizer_training, "train", train)
    texts = [f"text {i:05} of 40 letters, with its number" for i in range(40)]
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    cfg = DataConfig(path=path, cache=str(tmp_path / "cache"), eval_path=path)
    open_labelled(cfg, Classification(), "encoder")
    assert len([text for text in given if len(text) > 9]) == seen
    words = TokenizerConfig(name="words", vocab_size=256, min_count=2)
    opened(tmp_path, Classification(), rows, tokenizer=words)
    assert len(list((tmp_path / "cache").glob("tokenizer-*"))) == 2, "one for each config"


def labelled_texts():
    return [{"text": text, "label": i % 2} for i, text in enumerate(TEXTS)]


def test_an_error_in_a_large_table_names_the_row_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    monkeypatch.setattr(encoding, "MAX_ROWS", 4)
    rows = labelled_texts()
    rows[29]["text"] = 3.5
    with pytest.raises(ConfigError, match=r"rows.jsonl'?: row 30: text=3.5 is not a text"):
        opened(tmp_path, Classification(), rows)
    rows[29]["text"] = "\ud800"
    with pytest.raises(ConfigError, match="row 30: text is not valid Unicode"):
        opened(tmp_path, Classification(), rows, tokenizer=TokenizerConfig(vocab_size=400))


@dataclass(frozen=True, kw_only=True)
class Weighted(Classification):
    """As docs/fine-tuning.md has it."""

    columns = (*Classification.columns, Column("weight", optional=True, predicted=True))

    @property
    def stored(self):
        return {**super().stored, "weight": StoredColumn("float32", ())}

    def encode(self, rows, encoder):
        made = super().encode(rows, encoder)
        for row, (record,) in zip(rows, made, strict=True):
            record["weight"] = np.float32(row["weight"])
        return made

    def make_example(self, records, index, rng):
        example = super().make_example(records, index, rng)
        example["targets"]["weights"] *= records.pieces(index)[0]["weight"]
        return example


@pytest.mark.parametrize("small", [rows_of_tables.SMALL_BYTES, 0])
def test_a_task_of_ones_own_stores_what_it_declares(tmp_path, monkeypatch, small):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", small)
    rows = [{**row, "weight": number / 2} for number, row in enumerate(labelled_texts())]
    task, records, _ = opened(tmp_path, Weighted(), rows)
    train = records["train"]
    due = [rows[train.table.rows.origin(i)[1] - 1]["weight"] for i in range(len(train))]
    assert [example[1] for example in examples(task, train) if "weights" in str(example[0])] == due


@pytest.mark.parametrize(
    "columns, message",
    [
        ({}, r"Weighted: declares no stored columns.*add `stored`, as docs/fine-tuning.md shows"),
        (
            {"row": StoredColumn("int32", ())},
            r"Weighted\.stored: 'row' is a column that each",
        ),
        ({"ids": StoredColumn("token")}, r"column 'label': is not declared in `stored`"),
    ],
)
def test_what_a_task_stores_is_declared(tmp_path, monkeypatch, columns, message):
    monkeypatch.setattr(Weighted, "stored", columns)
    rows = [{**row, "weight": 1} for row in labelled_texts()]
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, Weighted(), rows)
    monkeypatch.setattr(Weighted, "stored", {"ids": StoredColumn("token")})
    monkeypatch.setattr(Weighted, "encode", lambda self, rows, encoder: [[]])
    with pytest.raises(ConfigError, match=r"Weighted\.encode: returns 1 lists .* for \d+ rows"):
        opened(tmp_path, Weighted(), rows)


def test_the_same_bytes_are_other_rows_where_another_suffix_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    lines = [f"tab {n}\t{'ab'[n % 2]}\t-,comma {n},{'ab'[n % 2]},-\n" for n in range(40)]
    options = {"eval_fraction": 0.3, "tokenizer": TokenizerConfig(name="bytes")}
    for suffix, due in ((".tsv", "tab"), (".csv", "comma")):
        path = tmp_path / f"rows{suffix}"
        path.write_text("text\tlabel\t-,text,label,-\n" + "".join(lines))
        cfg = DataConfig(path=str(path), cache=str(tmp_path / "cache"), **options)
        train = open_labelled(cfg, Classification(), "encoder")[1]["train"]
        assert train.rows[0]["text"].startswith(due)
        assert train.tokenizer.decode(train.pieces(0)[0]["ids"]).startswith(due)


def test_examples_are_made_anew_where_code_that_they_depend_on_has_changed(tmp_path, monkeypatch):
    package = tmp_path / "package"
    changed = package / "objectives" / "tables" / "classification.py"
    changed.parent.mkdir(parents=True)
    monkeypatch.setattr(digests.registry, "__file__", str(package / "registry.py"))
    keys = []
    for code in ("before", "after"):
        changed.write_text(code)
        digests._code.cache_clear()
        keys.append(digests.made_by(Classification()))
    digests._code.cache_clear()
    assert keys[0] != keys[1]


def test_rows_are_predicted_where_the_cache_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    path = tmp_path / "rows.csv"
    path.write_text("text,label\none,a\ntwo,b\n")
    (tmp_path / "file").write_text("")
    cfg = DataConfig(cache=str(tmp_path / "file" / "cache"))
    task = Classification(labels=("a", "b"))
    for predicts in (True, False):
        records = open_rows(str(path), cfg, task, tokenizer.Bytes(), "encoder", predicts=predicts)
        assert len(records) == 2 and not records.table.is_stored


def test_preferences_whose_conversations_have_the_prompt_are_split(tmp_path):
    rows = []
    for number in range(20):
        row = {}
        for side in ("chosen", "rejected"):
            answer = {"role": "assistant", "content": side}
            row[side] = [{"role": "user", "content": f"question {number}"}, answer]
        rows.append(row)
    _, records, _ = opened(tmp_path, Dpo(), rows, skeleton="decoder", length=96)
    assert len(records["train"]) + len(records["eval"]) == 20 and len(records["eval"]) in range(
        3, 9
    )


def test_a_tokenizer_is_trained_on_the_columns_that_the_task_reads(tmp_path):
    rows = []
    for i in range(20):
        words = {"tokens": [f"q{i}", "q"], "tags": ["X", "O"]}
        rows.append({"text": f"many words {i}", "label": "ab"[i % 2], **words})
    held = write_rows(tmp_path / "held.jsonl", rows)
    chosen = TokenizerConfig(name="byte_bpe", vocab_size=400)
    options = {"tokenizer": chosen, "eval_path": held}
    _, of_text, _ = opened(tmp_path, Classification(), rows, **options)
    _, of_words, _ = opened(tmp_path, Tagging(), rows, **options)
    pieces = [splits["train"].tokenizer.pieces() for splits in (of_text, of_words)]
    assert [any(b"wo" in piece for piece in known) for known in pieces] == [True, False]


def write_numbered(path, classes):
    """Writes rows whose label is the number of a class, which the text names."""
    features = {"label": {"_type": "ClassLabel", "names": classes}}
    rows = [{"text": f"{classes[i % 2]} {i}", "label": i % 2} for i in range(20)]
    table = pyarrow.Table.from_pylist(rows)
    kept = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(kept), path)
    return str(path)


def test_a_number_is_the_class_that_its_own_table_names(tmp_path):
    train = write_numbered(tmp_path / "train.parquet", ["no", "yes"])
    held = write_numbered(tmp_path / "eval.parquet", ["yes", "no"])
    chosen = TokenizerConfig(name="bytes")
    data = DataConfig(path=train, eval_path=held, tokenizer=chosen, cache=str(tmp_path / "cache"))
    task, splits, _ = open_labelled(data, Classification(), "encoder", ("yes", "no"))
    assert task.labels == ("yes", "no")  # as the starting weights have them
    again = open_rows(train, data, task, tokenizer.Bytes(), "encoder")
    for records in (*splits.values(), again):
        named = [task.labels[label] for label in records.column("label")]
        assert named == [row["text"].split()[0] for row in records.rows]
    unnamed = {}
    for name, records in splits.items():
        unnamed[name] = replace(records, table=replace(records.table, names={}))
    assert fingerprint_rows(data, task, splits) != fingerprint_rows(data, task, unnamed)
