import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.text.special_tokens import Framed
from tests.objectives import learned, tables

ENDINGS = {f"ending{i}": text for i, text in enumerate(("d", "e f", "g", "h"))}
SWAG = {"sent1": "a b", "sent2": "c", **ENDINGS, "label": "2"}


def texts(records, index=0):
    """The two texts of each choice of a row."""
    words = {i: word for word, i in records.tokenizer.library.get_vocab().items()}
    record = records.pieces(index)[0]
    choices = np.split(record["ids"], np.cumsum(record["text_lengths"])[:-1])
    spelled = lambda ids: " ".join(words[i] for i in ids)  # noqa: E731
    rows = [Framed(ids, second, 0) for ids, second in zip(choices, record["seconds"], strict=True)]
    return [tuple(map(spelled, records.frame.texts_of(row))) for row in rows]


QUESTION = {"question": "a", "choices": ["b", "c"]}
BOTH = [("a", "b"), ("a", "c")]


@pytest.mark.parametrize(
    ("row", "due", "label"),
    [
        (SWAG, [("a b", "c d"), ("a b", "c e f"), ("a b", "c g"), ("a b", "c h")], 2),
        (QUESTION | {"answer": 1}, BOTH, 1),
        (QUESTION | {"answer": "B"}, BOTH, 1),
        (QUESTION | {"choices": ["2", "1"], "answer": "2"}, [("a", "2"), ("a", "1")], 0),
        (
            QUESTION | {"choices": {"label": ["1", "2"], "text": ["b", "c"]}, "answerKey": "1"},
            BOTH,
            0,
        ),
        (
            {"article": "a", "question": "b ?", "options": ["c", "d"], "answer": "d"},
            [("a", "b ? c"), ("a", "b ? d")],
            1,
        ),
        (
            {"premise": "a", "question": "effect", "choice1": "b", "choice2": "c", "label": 0},
            [("a", "effect b"), ("a", "effect c")],
            0,
        ),
    ],
)
def test_forms_of_a_row(tmp_path, row, due, label):
    _, records = learned.encoded(MultipleChoice(choices=4), [row], tmp_path, length=12, fit=False)
    assert texts(records) == due and records.pieces(0)[0]["label"] == label


def test_an_example_has_an_axis_of_choices_and_fewer_are_filled_up(tmp_path):
    rows = [SWAG, {**SWAG, "ending2": "", "ending3": "", "label": 1}]
    task, records = learned.encoded(MultipleChoice(), rows, tmp_path, length=9)
    fewer, _ = learned.encoded(MultipleChoice(), rows[1:], tmp_path, length=9)
    assert (task.choices, fewer.choices) == (4, 2)
    whole, part = (task.make_example(records, i, None) for i in range(2))
    assert jax.tree.map(np.shape, whole) == jax.tree.map(np.shape, part)
    for name in ("input_ids", "token_type_ids"):
        assert whole["inputs"][name].shape == (4, 9)
    assert part["inputs"]["attention_mask"].sum(axis=1).tolist() == [7, 8, 1, 1]
    assert records.tokens_cut(0) == [0] and part["targets"] == {"label": 1, "weights": 1.0}


def test_loss_is_that_of_transformers_and_an_absent_choice_has_no_part_in_it():
    model, params = load_pretrained("tests/fixtures/bert_multiple_choice")
    ids = np.arange(5, 29).reshape(2, 3, 4)
    targets = {"label": jnp.asarray([2, 0]), "weights": jnp.ones(2)}

    @jax.jit
    def loss(ids, mask):
        inputs = {"input_ids": ids, "attention_mask": mask}
        outputs = model.apply({"params": params}, inputs, method=MultipleChoice().outputs)
        return MultipleChoice().loss(outputs, targets, chunks=1).mean()

    mask = np.ones_like(ids)
    assert float(loss(ids, mask)) == pytest.approx(1.2933769226074219, rel=1e-5)
    more = np.zeros((2, 1, 4), np.int32)
    filler = np.broadcast_to(np.asarray([1, 0, 0, 0]), (2, 1, 4))
    filled = loss(np.concatenate([ids, more], axis=1), np.concatenate([mask, filler], axis=1))
    assert float(filled) == pytest.approx(float(loss(ids, mask)), rel=1e-6)


def test_the_likeliest_choice_is_told_by_number_text_and_probability(tmp_path):
    rows = [SWAG, {**SWAG, "label": 3}, {**SWAG, "label": 3}]
    task, records = learned.encoded(MultipleChoice(), rows, tmp_path, length=9)
    logits = np.float32([[0, 2, 0, -1e30], [0, 0, 0, 1], [9, 0, 0, 0]])
    told = task.decode({"logits": logits}, records)
    assert [(one["prediction"], one["choice"]) for one in told] == [(1, "e f"), (3, "h"), (0, "d")]
    assert told[0]["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    data = tables.data_of(records)
    due = ("most frequent position", pytest.approx(2 / 3))
    assert task.baseline(data, task.fit_baseline(data)) == due


def test_context_must_divide_the_tokens_not_the_choices(tmp_path):
    mesh = MeshConfig(data=1, context=2)
    cfg = learned.config(tmp_path, MultipleChoice(), [SWAG] * 60, length=9, mesh=mesh)
    with pytest.raises(ConfigError, match=r"input_ids has 9 positions.*try data.length=10"):
        learned.setup.prepare_experiment(cfg)


def test_examples_of_a_task_that_is_not_fitted_have_one_shape(tmp_path):
    rows = [{**SWAG, "ending2": "", "ending3": "", "label": 1}, SWAG]
    task, records = learned.encoded(MultipleChoice(), rows, tmp_path, length=9, fit=False)
    assert task.choices == 0
    shapes = [task.make_example(records, i, None)["inputs"]["input_ids"].shape for i in range(2)]
    assert shapes == [(4, 9)] * 2
