import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.tables.tagging import Tagging, first_pieces
from flaxformer_lite.text.tokenizer import HuggingFace
from tests.objectives import learned, tables

TEXT = [
    "The U.S. naïve café-goers don't e-mail ½ of Zürich's 東京 staff .",
    "sexta-feira , 28 de fevereiro #PETR4 @user http://t.co/kEreB1xgU4 🙂 R$ 1.000,00 !",
]


def word_piece():
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=90, special_tokens=learned.SPECIALS)


def byte_bpe():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    letters = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": ["[EOS]"], "initial_alphabet": letters}
    return made, trainers.BpeTrainer(vocab_size=300, **options)


def unigram():
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["[EOS]", "<unk>"]
    return made, trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>")


@pytest.mark.parametrize("build", [word_piece, byte_bpe, unigram])
def test_first_pieces_are_those_of_words_tokenized_apart(build):
    made, trainer = build()
    made.train_from_iterator(TEXT * 3, trainer)
    known = HuggingFace(made.to_str().encode())
    for text in TEXT:
        words = text.split()
        due = made.encode(words, is_pretokenized=True, add_special_tokens=False)
        (spans,) = known.encode_spans([text])
        assert spans.ids.tolist() == due.ids
        row = known.frame("encoder").join(spans, limit=500)
        assert len(due.ids) > len(words)
        first = [due.word_ids.index(i) for i in range(len(words))]
        before = len(row.ids) - len(due.ids) - (row.part[::-1] < 0).argmin()
        np.testing.assert_array_equal(first_pieces(row, words), np.asarray(first) + before)


def test_words_that_are_cut_off_or_have_no_piece_have_weight_0(tmp_path):
    row = {"tokens": ["a", "", "b", "c", "d"], "tags": ["X", "Y", "Y", "X", "X"]}
    rows = [row, {"tokens": [], "tags": []}]
    task, records = learned.encoded(Tagging(), rows, tmp_path, length=5)
    example = task.make_example(records, 0, None)
    assert records.table_rows.tolist() == [0]
    assert records.pieces(0)[0]["first"].tolist() == [1, -1, 2, 3, -1]
    assert example["inputs"]["input_ids"].tolist() == [2, 7, 8, 9, 3]  # [CLS] a b c [SEP]
    assert example["targets"]["labels"].tolist() == [0, 0, 1, 0, 0]
    assert example["targets"]["weights"].tolist() == [0, 1, 1, 1, 0]
    told = task.decode({"tags": np.asarray([[1, 0, 1, 1, 1]])}, records)
    assert task.usual == "X"
    assert told[0] == {"prediction": ["X", "X", "Y", "Y", "X"], "words_cut": 2}
    assert told[1:] == [{"prediction": [], "words_cut": 0}]
    data = tables.data_of(records)
    found = task.scores({"tags": np.asarray([[1, 0, 1, 1, 1]])}, np.asarray([0]), data)
    assert found == {"accuracy": 3 / 5}
    assert task.baseline(data, task.fit_baseline(data)) == ("most frequent tag of each word", 1.0)
    assert task.baseline(data, None) is None
    fitted = {"overall": 1, "words": {"a": 0}}  # of other rows: "a" is X, all else Y
    assert task.baseline(data, fitted) == ("most frequent tag of each word", 3 / 5)
    per_tag, _ = task.breakdown({"tags": np.asarray([[1, 0, 1, 1, 1]])}, np.asarray([0]), data)
    assert [row[0] for row in per_tag.rows] == ["X", "Y"]
    assert sum(row[-1] for row in per_tag.rows) == 5


def test_texts_are_split_at_spaces_and_answered_with_texts(tmp_path):
    rows = [{"tokens": "new york", "tags": "B-LOC I-LOC"}]
    task, records = learned.encoded(Tagging(), rows, tmp_path)
    assert task.labels == ("B-LOC", "I-LOC") and task.usual == "B-LOC"
    (told,) = task.decode({"tags": np.full((1, 16), 1)}, records)
    assert told == {"prediction": "I-LOC I-LOC", "words_cut": 0}


def test_numbers_of_tags_have_the_names_of_the_table():
    rows = [{"tokens": ["a", "b"], "tags": [1, 0]}]
    assert Tagging().fit(rows, {"tags": ("O", "B-X")}).labels == ("O", "B-X")
    assert Tagging().fit(rows, {}).labels == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "headline"),
    [(("O", "B-X", "I-X"), "f1"), (("S-X", "E-X", "O"), "f1"), (("X", "O"), "accuracy")],
)
def test_entities_are_scored_where_tags_say_where_they_begin(labels, headline):
    assert Tagging(labels=labels).shown[0].name == headline


def test_loss_is_that_of_transformers():
    model, params = load_pretrained("tests/fixtures/bert_token_classification")
    ids = np.arange(5, 21).reshape(2, 8)
    labels = np.asarray([[0, 1, 2, 0, 1, 2, 0, 1], [2, 2, 1, 1, 0, 0, 1, 0]])
    weights = np.asarray([[0, 1, 0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]], np.float32)
    compute = jax.jit(functools.partial(model.apply, method=Tagging().outputs))
    outputs = compute({"params": params}, {"input_ids": ids})
    targets = {"labels": jnp.asarray(labels), "weights": jnp.asarray(weights)}
    sums = Tagging().loss(outputs, targets, chunks=1)
    assert float(sums.mean()) == pytest.approx(2.2329940795898438, rel=1e-5)


def test_a_held_out_tag_that_training_lacks_is_refused(tmp_path):
    rows = [{"tokens": "a b", "tags": "X Y"}] * 4 + [{"tokens": "a b", "tags": "X Z"}]
    with pytest.raises(ConfigError, match=r"eval.jsonl'?: row 1:.*no training.*'Z', only X, Y"):
        learned.setup.prepare_experiment(learned.config(tmp_path, Tagging(), rows))
