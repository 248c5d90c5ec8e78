"""Tables as people have them: missing labels and texts, shared rows, two spellings, Excel files."""

import re

import pytest

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data import rows as rows_of_tables
from flaxformer_lite.data.rows import open_table
from flaxformer_lite.data.table_examples import open_labelled
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.dpo import Dpo
from flaxformer_lite.objectives.tables.tagging import Tagging
from tests.objectives.tables import write_rows


@pytest.fixture(params=["in memory", "in files"], autouse=True)
def large(request, monkeypatch):
    if request.param == "in files":
        monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)


def opened(folder, rows, task=None, *, held=(), skeleton="encoder", **options):
    path, held_path = (
        write_rows(folder / f"{name}.jsonl", part)
        for name, part in (("train", rows), ("held", held))
    )
    cfg = DataConfig(
        path=path,
        eval_path=held_path if held else "",
        cache=str(folder / "cache"),
        tokenizer=TokenizerConfig(name="bytes"),
        **{"eval_fraction": 0.3, **options},
    )
    return open_labelled(cfg, task or Classification(), skeleton)


def rows_of(count, **changes):
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(count)]
    for at, row in changes.items():
        rows[int(at[1:])] |= row
    return rows


def warnings(described):
    return " ".join(value for name, value in described if name == "warning")


def test_all_rows_without_a_label_are_one_message_and_can_be_left_out(tmp_path):
    lacking = ["", " ", None, float("nan"), "NaN", "null", "<NA>"]
    rows = rows_of(40, **{f"_{3 * i}": {"label": value} for i, value in enumerate(lacking)})
    message = (
        r"7 of 40 rows have no label \(rows 1, 4, 7, 10, 13, ...\); 'NaN' counts as none"
        r" \(objective.missing\); .* with --config.data.drop_incomplete=True"
    )
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, rows)
    task, records, described = opened(tmp_path, rows, drop_incomplete=True)
    kept = sorted(row["text"] for part in records.values() for row in part.rows)
    assert kept == sorted(row["text"] for i, row in enumerate(rows) if i % 3 or i > 18)
    assert task.labels == ("a", "b") and "7 rows without a label or text" in warnings(described)
    numbers = {i + 1 for i, row in enumerate(rows) if row["text"] in kept}
    in_file = [
        part.table.rows.origin(i)[1] for part in records.values() for i in range(len(part.rows))
    ]
    assert set(in_file) == numbers


def test_a_class_that_is_called_null_is_one_if_it_is_named(tmp_path):
    rows = rows_of(40, _3={"label": "null"}, _8={"label": "null"}, _9={"label": "null"})
    task, _, _ = opened(tmp_path, rows, Classification(labels=("a", "b", "null")))
    assert task.labels == ("a", "b", "null")
    blank = [{"text": row["text"], "label": ["", "a", "a;b"][i % 3]} for i, row in enumerate(rows)]
    assert opened(tmp_path, blank, Classification(kind="multiple"))[0].labels == ("a", "b")


class WithoutTodo(Classification):
    def is_missing(self, role, value):
        return value == "todo" or super().is_missing(role, value)


def test_a_task_with_a_rule_of_its_own_is_asked_about_all_values(tmp_path):
    rows = rows_of(20, _4={"label": "todo"}, _5={"text": "todo"})
    with pytest.raises(ConfigError, match=r"row 5 has no label; .* row 6 has no text"):
        opened(tmp_path, rows, WithoutTodo())


def test_texts_that_are_missing_are_refused_and_empty_ones_counted(tmp_path):
    with pytest.raises(ConfigError, match=r"2 of 40 rows have no text \(rows 5, 9\)"):
        opened(tmp_path, rows_of(40, _4={"text": None}, _8={"text": float("nan")}))
    rows = rows_of(40, _4={"text": ""}, _8={"text": "  "}, _9={"text": "NaN"})
    _, records, described = opened(tmp_path, rows)
    assert sum(map(len, records.values())) == 40
    assert "3 rows have an empty text, such as row 5" in warnings(described)
    _, records, _ = opened(tmp_path, rows, drop_incomplete=True)
    assert sum(map(len, records.values())) == 37


def test_faults_of_several_columns_come_in_the_order_of_their_first_rows(tmp_path):
    lacking = {"_2": {"label": None}, "_5": {"text": None}, "_7": {"label": ""}}
    for first, second in (("label", "text"), ("text", "label")):
        with pytest.raises(ConfigError, match=rf"no {first}\b.* no {second}\b"):
            opened(tmp_path, rows_of(40, **lacking))
        lacking["_1"] = {"text": None}


def test_held_out_rows_that_are_training_rows_are_counted(tmp_path):
    rows = rows_of(20)
    said = warnings(opened(tmp_path, rows, held=rows[:3] + [{"text": "new", "label": "a"}])[2])
    assert "3 of 4 held-out rows (75%) are also training rows" in said
    assert not warnings(opened(tmp_path, rows, held=[{"text": "new", "label": "a"}])[2])


def test_labels_in_two_spellings_and_of_a_single_row_are_named_in_quotes(tmp_path):
    rows = rows_of(40, _1={"label": "B "}, _2={"label": "A"}, _5={"label": "rare"})
    held = [{"text": f"held {label}", "label": label} for label in ("a", "rare", "rare")]
    said = warnings(opened(tmp_path, rows, held=held)[2])
    assert "differ only in case, spaces, Unicode form or a final .0: 'A', 'a'" in said
    assert "'B ', 'b'" in said
    assert "'rare' (1 to train on, 2 held out)" in said
    tags = [{"tokens": f"{i} b", "tags": "x X"} for i in range(20)]
    assert "'X', 'x'" in warnings(opened(tmp_path, tags, Tagging())[2])


@pytest.mark.parametrize("word", ["#N/A", "N/A", "NA", "n/a", "None", "NULL", "<NA>", "nan"])
def test_what_pandas_reads_as_missing_is_missing_unless_the_config_says_otherwise(tmp_path, word):
    rows = rows_of(40, _3={"label": word}, _8={"label": word}, _9={"label": word})
    with pytest.raises(ConfigError, match=rf"3 of 40 rows have no label .*'{word}' counts as none"):
        opened(tmp_path, rows)
    assert opened(tmp_path, rows, drop_incomplete=True)[0].labels == ("a", "b")
    kept = opened(tmp_path, rows, Classification(missing=()), held=rows[:4])[0]
    assert set(kept.labels) == {"a", "b", word}


SPELLINGS = {
    "case": ("humor", "Humor"),
    "spaces": ("no  one", " no one"),
    "Unicode form": ("caf\u00e9", "cafe\u0301"),
    "a final .0": ("1", "1.0"),
    "numbers": (1, 1.0),
}


@pytest.mark.parametrize("usual, other", SPELLINGS.values(), ids=SPELLINGS)
def test_all_faults_of_a_file_are_one_message_and_spellings_can_be_folded(tmp_path, usual, other):
    rows = rows_of(20, **{f"_{i}": {"label": usual} for i in range(0, 12, 2)})
    rows += [{"text": "more", "label": "A"}, {"text": "none", "label": None}]
    held = [{"text": "new", "label": other}, {"text": "other", "label": "b"}]
    for dropped in (False, True):  # what is wrong first, and what is wrong after that
        with pytest.raises(ConfigError) as refused:
            opened(tmp_path, rows, held=held, drop_incomplete=dropped)
        said = str(refused.value)
        assert ("row 22 has no label" in said) != dropped
        assert ("row 1: no training row has the label" in said) == dropped
        assert "'A', 'a'" in said and "--config.objective.fold_labels=True" in said
        assert (f"{str(other)!r}, and {str(usual)!r}" in said) == dropped
    task, records, described = opened(
        tmp_path, rows, Classification(fold_labels=True), held=held, drop_incomplete=True
    )
    assert task.labels == tuple(sorted([str(usual), "a", "b"]))
    assert task.labels[records["eval"].column("label")[0]] == str(usual)
    assert "differ only" not in warnings(described)


def test_tags_can_be_folded(tmp_path):
    rows = [{"tokens": f"{i} b", "tags": "x y"} for i in range(20)]
    held = [{"tokens": "c d", "tags": "X y"}]
    with pytest.raises(ConfigError, match="fold_labels=True"):
        opened(tmp_path, rows, Tagging(), held=held)
    task, records, _ = opened(tmp_path, rows, Tagging(fold_labels=True), held=held)
    assert task.labels == ("x", "y") and list(records["eval"].pieces(0)[0]["tag"]) == [0, 1]


def test_a_class_whose_only_row_is_held_out_is_explained(tmp_path):
    """Which rows the hash holds out is not known here, so each of some texts is alone once."""
    for number in range(20):
        rows = [*rows_of(20), {"text": f"text {number}", "label": "rare"}]
        try:
            opened(tmp_path, rows, eval_fraction=0.3)
        except ConfigError as error:
            refused = str(error)
            break
    said = r"row 21: no training row has the label 'rare'.* may be held out.*objective.labels"
    assert re.search(said, refused)


def test_columns_of_usual_names_in_any_case_and_all_that_are_missing_at_once(tmp_path):
    rows = [{" Text ": row["text"], "CLASS": row["label"]} for row in rows_of(40)]
    assert opened(tmp_path, rows)[0].labels == ("a", "b")
    odd = [{"words": row["text"], "kind": row["label"]} for row in rows_of(40)]
    message = r"needs columns for 'text' and 'label'; .*--config.data.columns=text=NAME,label=NAME"
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, odd)


def test_the_length_at_which_a_row_fits_is_named(tmp_path):
    rows = [{"prompt": f"p{i}", "chosen": "good", "rejected": "bad"} for i in range(6)]
    with pytest.raises(ConfigError, match=r"raise data.length=8 to (\d+) or more") as caught:
        opened(tmp_path, rows, Dpo(), skeleton="decoder", length=8)
    enough = int(re.search(r"=8 to (\d+)", str(caught.value))[1])
    assert len(opened(tmp_path, rows, Dpo(), skeleton="decoder", length=enough)[1]["train"])
    with pytest.raises(ConfigError, match=r"raise data\.length"):
        opened(tmp_path, rows, Dpo(), skeleton="decoder", length=enough - 1)


WRITTEN = "text,label\ncaf\u00e9,yes\n\u201cno\u201d,no\n"


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.txt"])
def test_utf_16_is_read(tmp_path, name):
    content = WRITTEN if name == "t.csv" else WRITTEN.replace(",", "\t")
    (tmp_path / name).write_bytes(content.encode("utf-16"))
    read = open_table(str(tmp_path / name), "here", root=str(tmp_path / "cache"))
    found = [(row["text"], row["label"]) for row in read.rows]
    assert found == [("caf\u00e9", "yes"), ("\u201cno\u201d", "no")]


def test_cp1252_is_said_to_be_that_with_the_line_and_the_way(tmp_path):
    (tmp_path / "t.csv").write_bytes(WRITTEN.encode("cp1252"))
    message = (
        r"here:2: not UTF-8 text \(byte 0xe9; as cp1252 it reads 'caf\u00e9,yes'\).*'CSV UTF-8'.*"
        r"iconv -f cp1252 -t utf-8 t.csv"
    )
    with pytest.raises(ConfigError, match=message):
        open_table(str(tmp_path / "t.csv"), "here", root=str(tmp_path / "cache"))
