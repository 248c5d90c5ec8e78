import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.rows import open_table

PLAIN = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\n# NN O\r\n\n"
UNIVERSAL = """# text = no mar !
1-2\tno\t_\t_\t_\t_\t_\t_\t_\t_
1\tem\tem\tADP\tE\t_\t3\tcase\t_\t_
2\to\to\tDET\tD\t_\t3\tdet\t_\t_
3\tmar um\tmar\tNOUN\tN\t_\t0\troot\t_\t_
3.1\tx\tx\tX\tX\t_\t_\t_\t_\t_

# text = oi
1\toi\toi\tINTJ\tI\t_\t0\troot\t_\t_"""


def read(folder, name, text):
    (folder / name).write_text(text, newline="")
    return list(open_table(str(folder / name), "data.path").rows)


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_first_column_is_the_word_and_the_last_its_tag(tmp_path, name):
    assert read(tmp_path, name, PLAIN) == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["#"], "tags": ["O"]},
    ]
    assert read(tmp_path, name, "EU\n\nrejects\n") == [{"tokens": ["EU"]}, {"tokens": ["rejects"]}]


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_errors_name_the_line_where_a_sentence_begins(tmp_path, name):
    (tmp_path / name).write_text(PLAIN, newline="")
    assert open_table(str(tmp_path / name), "data.path").name_rows([0, 1]) == "lines 3, 7"


def test_conllu_has_columns_and_syntactic_words(tmp_path):
    rows = read(tmp_path, "a.conllu", UNIVERSAL)
    assert [row["tokens"] for row in rows] == [["em", "o", "mar um"], ["oi"]]
    assert rows[0]["upos"] == ["ADP", "DET", "NOUN"] and rows[0]["xpos"] == ["E", "D", "N"]
    assert len(rows[0]) == 9


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "EU O\nrejects VBZ O\n", r"data.path:2: 3 columns;.*each word.*2"),
        ("a.conllu", "1\tEU\tO\n", r"data.path:1: 3 columns;.*each word.*10"),
        ("a.conll", "\n\n", "data.path: no rows in it"),
        ("a.txt", "-DOCSTART- O\n", "no rows in it"),
    ],
)
def test_uneven_and_empty_files_are_refused(tmp_path, name, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, name, text)
