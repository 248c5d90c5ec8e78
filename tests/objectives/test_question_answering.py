import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering
from tests.marks import daily
from tests.objectives import learned, tables

CONTEXT = {"question": "who ?", "context": "a b c d e f g"}
ROW = CONTEXT | {"answers": {"text": ["d e"], "answer_start": [6]}}
NONE = {"question": "who ?", "context": "b c", "answers": {"text": [], "answer_start": []}}


def logits(records, *peaks):
    """Start and end logits of each example, 0 but for (example, column of start, of end,
    height)."""
    start, end = np.zeros((2, len(records), records.length), np.float32)
    for example, first, last, height in peaks:
        start[example, first] += height
        end[example, last] += height
    return {"start": start, "end": end}


def test_windows_of_a_long_context(tmp_path):
    task, records = learned.encoded(QuestionAnswering(stride=1), [ROW], tmp_path, length=8)
    words = [row_words(records, i) for i in range(len(records))]
    assert words == ["a b c", "c d e", "e f g"]  # [CLS] who ? [SEP] x x x [SEP]
    examples = [task.make_example(records, i, None) for i in range(3)]
    spans = [(int(e["targets"]["start"]), int(e["targets"]["end"])) for e in examples]
    assert spans == [(0, 0), (5, 6), (0, 0)]
    assert examples[1]["inputs"]["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert records.table_rows.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("length", "stride", "due"), [(12, 9, 1), (9, 0, 2), (9, 9, 3), (30, 3, 1)]
)
def test_windows_share_at_most_half_of_their_tokens(tmp_path, length, stride, due):
    _, records = learned.encoded(QuestionAnswering(stride=stride), [ROW], tmp_path, length=length)
    assert len(records) == due
    assert set(" ".join(row_words(records, i) for i in range(due)).split()) == set("abcdefg")
    assert records.lengths("ids").max() <= length


def row_words(records, index):
    record = records.pieces(index)[0]
    spans = zip(record["char_start"], record["char_end"], record["part"], strict=True)
    return " ".join(records.rows[0]["context"][b:e] for b, e, part in spans if part == 1)


def test_a_decoder_says_none_behind_the_context(tmp_path):
    options = {"length": 10, "skeleton": "decoder"}
    _, records = learned.encoded(QuestionAnswering(stride=0), [ROW, NONE], tmp_path, **options)
    row, none = (records.pieces(i)[0] for i in range(2))
    assert row["ids"][-1] == records.tokenizer.eos_id
    assert (row["start"], row["end"]) == (5, 6)
    assert none["start"] == none["end"] == len(none["ids"]) - 1 == 4


def test_a_long_question_is_cut(tmp_path):
    rows = [{"question": "a b c d e f g h", "context": "a b", "answers": "b"}]
    _, records = learned.encoded(QuestionAnswering(question_length=3), rows, tmp_path)
    assert (records.pieces(0)[0]["part"] == 0).sum() == 3
    _, records = learned.encoded(QuestionAnswering(), rows, tmp_path, length=7)
    part = records.pieces(0)[0]["part"]
    assert (part == 0).sum() == (part == 1).sum() == 2


def test_the_best_span_of_all_windows_is_the_answer(tmp_path):
    task, records = learned.encoded(QuestionAnswering(stride=1), [ROW], tmp_path, length=8)
    told = task.decode(logits(records, (0, 4, 5, 3), (2, 5, 6, 4), (1, 0, 0, 9)), records)
    # no question of training lacks an answer, so "none" is not asked
    assert told[0]["prediction"] == "f g"
    peak = np.exp(4) / (np.exp(4) + 3)
    assert told[0]["probability"] == pytest.approx(peak**2, rel=1e-5)


@pytest.mark.parametrize(("threshold", "due"), [(0.0, ""), (3.9, ""), (4.1, "d e")])
def test_none_is_the_answer_if_all_windows_say_so(tmp_path, threshold, due):
    objective = QuestionAnswering(stride=1, null_threshold=threshold)
    task, records = learned.encoded(objective, [ROW, NONE], tmp_path, length=8)
    assert task.no_answer
    none = [(example, 0, 0, height) for example, height in enumerate((9, 5, 7, 9))]
    told = task.decode(logits(records, *none, (1, 5, 6, 3)), records)
    assert [one["prediction"] for one in told] == [due, ""]


def test_scores_and_baseline(tmp_path):
    task, records = learned.encoded(QuestionAnswering(stride=1), [ROW, NONE], tmp_path, length=8)
    data = tables.data_of(records)
    found = task.scores(logits(records, (1, 5, 5, 9), (3, 0, 0, 9)), np.arange(4), data)
    assert found == pytest.approx({"f1": (2 / 3 + 1) / 2, "exact": 0.5})
    one = {name: values[1:2] for name, values in logits(records, (1, 5, 6, 9)).items()}
    assert task.scores(one, np.asarray([1]), data)["f1"] == 1  # of the evaluated windows alone
    assert task.baseline(data, task.fit_baseline(data)) == ("no answer", 0.5)


# From transformers 5.23: the loss, and the norm of its gradient, of the batch below.
PADDED = {
    "bert": (2.22269, 3.7999),
    "roberta": (2.1682, 8.76185),
    "bart": (2.11573, 3.43966),
    "gpt2": (1.87258, 2.51701),
    "llama": (2.11858, 6.19327),
    "opt": (1.56092, 2.84654),
    "t5": (2.97509, 5.44716),
}


DAILY = ("bert", "t5")


@pytest.mark.parametrize("family", daily(PADDED, DAILY))
def test_padding_counts_as_in_transformers(family):
    """The softmax over columns reads logits at padding, whose row of the token table torch does
    not train."""
    folder = f"tests/fixtures/{family}_question_answering"
    model, params = load_pretrained(folder)
    published = json.loads(Path(folder, "config.json").read_text())
    ids = np.arange(5, 21).reshape(2, 8)
    mask = np.ones_like(ids)
    ids[1, 5:] = published.get("pad_token_id") or 0
    mask[1, 5:] = 0
    if model.skeleton == "encoder_decoder":
        ids[:, 4] = published["eos_token_id"]
    task = QuestionAnswering()
    targets = {"start": jnp.asarray([2, 0]), "end": jnp.asarray([5, 0]), "weights": jnp.ones(2)}
    inputs = {"input_ids": ids, "attention_mask": mask}

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        outputs = model.apply({"params": params}, inputs, method=task.outputs)
        return task.loss(outputs, targets, chunks=1).mean()

    value, grads = loss(params)
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(grads)))
    np.testing.assert_allclose((value, norm), PADDED[family], rtol=1e-5)


def test_a_row_without_room_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data.length=3:.*no token"):
        learned.encoded(QuestionAnswering(), [ROW], tmp_path, length=3)
