import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice
from flaxformer_lite.runs.start import initial_state, setup
from tests.objectives import learned

SWAG = {
    "sent1": "a b",
    "sent2": "c",
    "ending0": "d",
    "ending1": "e f",
    "ending2": "g",
    "ending3": "h",
    "label": "2",
}


def texts(records, index=0):
    """The two texts of each choice of a row."""
    words = {i: word for word, i in records.tokenizer.library.get_vocab().items()}
    rows = [row for row in records.features[index].rows if row is not None]
    return [
        tuple(" ".join(words[i] for i in ids) for ids in records.frame.texts_of(row))
        for row in rows
    ]


@pytest.mark.parametrize(
    ("row", "due", "label"),
    [
        (SWAG, [("a b", "c d"), ("a b", "c e f"), ("a b", "c g"), ("a b", "c h")], 2),
        ({"question": "a", "choices": ["b", "c"], "answer": 1}, [("a", "b"), ("a", "c")], 1),
        ({"question": "a", "choices": ["b", "c"], "answer": "B"}, [("a", "b"), ("a", "c")], 1),
        (
            {"question": "a", "choices": ["2", "1", "0"], "answer": "2"},
            [("a", "2"), ("a", "1"), ("a", "0")],
            0,
        ),
        (
            {
                "question": "a",
                "choices": {"label": ["1", "2"], "text": ["b", "c"]},
                "answerKey": "1",
            },
            [("a", "b"), ("a", "c")],
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
    assert texts(records) == due and records.features[0].label == label


def test_an_example_has_an_axis_of_choices_and_fewer_are_filled_up(tmp_path):
    rows = [SWAG, {**SWAG, "ending2": "", "ending3": "", "label": 1}]
    task, records = learned.encoded(MultipleChoice(), rows, tmp_path, length=9)
    assert task.choices == 4 and MultipleChoice().fit(rows_of(task, rows[1:]), {}).choices == 2
    whole, part = (task.make_example(records, i, None) for i in range(2))
    assert jax.tree.map(np.shape, whole) == jax.tree.map(np.shape, part)
    assert whole["inputs"]["input_ids"].shape == (4, 9) and whole["inputs"][
        "token_type_ids"
    ].shape == (4, 9)
    assert part["inputs"]["attention_mask"].sum(axis=1).tolist() == [7, 8, 1, 1]
    assert records.features[0].cut == 0 and part["targets"] == {"label": 1, "weights": 1.0}


def rows_of(task, rows):
    """Rows by role."""
    names = {column.role: (column.role, *column.names) for column in task.columns}
    return [
        {role: next((row[n] for n in known if n in row), None) for role, known in names.items()}
        for row in rows
    ]


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
    told = task.decode(
        {"logits": np.asarray([[0, 2, 0, -1e30], [0, 0, 0, 1], [9, 0, 0, 0]], np.float32)}, records
    )
    assert [(one["prediction"], one["choice"]) for one in told] == [(1, "e f"), (3, "h"), (0, "d")]
    assert told[0]["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    data = type("Data", (), {"splits": {"train": records, "eval": records}})
    assert task.baseline(data, task.fit_baseline(data)) == (
        "most frequent position",
        pytest.approx(2 / 3),
    )


def kinds(count):
    """A question names a kind of word, and one of the choices, three or two, is of that kind."""
    draw = random.Random(0)
    rows = []
    words = {"red": ["r1", "r2"], "blue": ["b1", "b2"], "green": ["g1", "g2"]}
    for _ in range(count):
        order = draw.sample(sorted(words), k=draw.choice([2, 3]))
        asked = draw.choice(order)
        rows.append(
            {
                "question": asked,
                "choices": [draw.choice(words[kind]) for kind in order],
                "label": order.index(asked),
            }
        )
    return rows


@pytest.mark.nightly
def test_learns_which_choice_is_of_the_kind_asked_for(tmp_path):
    rows = kinds(500)
    found, baseline, workdir = learned.learn(tmp_path, MultipleChoice(), rows, length=6, steps=300)
    assert found["accuracy"] > baseline + 0.25
    new = learned.write(
        tmp_path / "new.jsonl", [{k: row[k] for k in ("question", "choices")} for row in rows[-20:]]
    )
    told = learned.predict(workdir, new)
    assert (
        np.mean(
            [one["prediction"] == row["label"] for one, row in zip(told, rows[-20:], strict=True)]
        )
        > 0.6
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh",
    [{"data": 2, "context": 2}, {"fsdp": 2, "tensor": 2}, {"data": 2, "mode": "pmap"}],
)
def test_a_mesh_computes_the_same(tmp_path, mesh):
    losses = []
    for parts in (MeshConfig(data=1), MeshConfig(**{"data": 1, **mesh})):
        cfg = learned.config(tmp_path, MultipleChoice(), kinds(60), length=6, mesh=parts)
        ready = setup.prepare_experiment(cfg)
        state = initial_state.initial_state(ready.program)
        batch = next(ready.train_batches(0))
        for _ in range(2):
            state, metrics = ready.program.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_context_must_divide_the_tokens_not_the_choices(tmp_path):
    cfg = learned.config(
        tmp_path, MultipleChoice(), kinds(60), length=9, mesh=MeshConfig(data=1, context=2)
    )
    with pytest.raises(ConfigError, match=r"input_ids has 9 positions.*try data.length=10"):
        setup.prepare_experiment(cfg)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "label": 0}, "needs a column for 'question'"),
        ({"question": "q", "choices": ["a", "b"]}, "needs a column for 'label'"),
        ({"question": "q", "label": 0}, "row 1: needs two choices or more"),
        (
            {"question": "q", "choices": ["a"], "label": 0},
            r"needs two choices or more, .* not \"\['a'\]\"",
        ),
        ({"question": "q", "choices": "a b", "label": 0}, "needs two choices or more"),
        (
            {"question": "q", "choices": ["a", "b"], "label": 2},
            "row 1: label='2' is none of its 2 choices",
        ),
        (
            {"question": "q", "choices": ["a", "b"], "label": ""},
            "row 1 has no label; .*data.drop_incomplete",
        ),
        ({"question": "q", "choices": ["a", "b"], "label": None}, "row 1 has no label; remove it"),
        ({"question": 7, "choices": ["a", "b"], "label": 0}, "row 1: question=7 is not a text"),
        (
            {"question": "q", "choices": ["\ud800", "b"], "label": 0},
            "row 1: choice is not valid Unicode",
        ),
    ],
)
def test_unusable_rows_are_refused_in_a_sentence(tmp_path, row, message):
    cfg = learned.config(tmp_path, MultipleChoice(), kinds(10))
    learned.write(tmp_path / "train.jsonl", [row])
    with pytest.raises(ConfigError, match=message):
        setup.prepare_experiment(cfg)


def test_more_choices_than_in_training_are_refused(tmp_path):
    rows = [{"question": "q", "choices": ["a", "b", "c"], "label": 0}]
    with pytest.raises(ConfigError, match=r"row 1: 3 choices, more than objective.choices=2"):
        learned.encoded(MultipleChoice(choices=2), rows, tmp_path)
