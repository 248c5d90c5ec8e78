import functools
import json
import shutil
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError, to_config_dict
from flaxformer_lite.contrib.token_embeddings.objectives.late_interaction import LateInteraction
from flaxformer_lite.contrib.token_embeddings.objectives.sparse_embeddings import SparseEmbeddings
from flaxformer_lite.nn.functions.pooling import truncate_vectors
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings, batch_logits
from flaxformer_lite.pretrained.sentences import trained_layers
from tests.objectives import learned, tables

PAIRS = SentenceEmbeddings()
SCORES = SentenceEmbeddings(kind="scores")
ROW = {"anchor": "a b", "positive": "c", "negatives": ["d", "a b c"], "score": None}
DRAWN = np.random.default_rng(0).normal(size=(5, 3, 8))
VECTORS = truncate_vectors(jnp.asarray(DRAWN, jnp.float32), 8)
GIVEN = jnp.asarray([0.5, 3.0, 3.0, 1.0, 0.0])


def targets(choices, **more):
    texts = jnp.arange(5 * choices, dtype=jnp.int32).reshape(5, choices)
    return {"texts": texts, "weights": jnp.ones(5), **more}


# Of sentence-transformers 6.2.0: MultipleNegativesRankingLoss, its sum over widths 8, 4 and 2, and
# CoSENTLoss.
@pytest.mark.parametrize(
    ("task", "choices", "due"),
    [
        (PAIRS, 3, 9.379880905151367),
        (PAIRS, 2, 9.138338088989258),
        (SentenceEmbeddings(sizes=(4, 2)), 3, 31.560452938079834),
        (SCORES, 2, 20.75165367126465),
    ],
)
def test_losses_are_those_of_sentence_transformers(task, choices, due):
    given = targets(choices, score=GIVEN)
    loss = jax.jit(lambda x: task.loss(x, given, chunks=1).mean())(VECTORS[:, :choices])
    assert float(loss) == pytest.approx(due, rel=1e-5)


@pytest.mark.parametrize("task", [PAIRS, SCORES])
def test_padding_of_the_last_batch_has_no_part_in_the_loss(task):
    whole = targets(3, score=GIVEN)
    first = jax.tree.map(lambda x: x[:3], whole)
    padded = whole | {"weights": whole["weights"].at[3:].set(0)}
    loss = jax.jit(lambda x, y: task.loss(x, y, chunks=1))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, loss(VECTORS, padded), loss(VECTORS[:3], first))


def test_which_texts_are_negatives():
    """Rows: 0-1 (negative 2), 0-3, 4-1, 1-5 (negative absent): columns are 1 3 1 5 | 2 - - -."""
    texts = jnp.asarray([[0, 1, 2], [0, 3, -1], [4, 1, -1], [1, 5, -1]])
    logits = batch_logits(jnp.ones((4, 3, 2)), texts, jnp.ones(4))
    due = [
        [1, 0, 0, 1, 1, 0, 0, 0],  # 3 is also right for 0, and 1 of the third row is the same text
        [0, 1, 0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 0, 0, 0],
        [0, 1, 0, 1, 1, 0, 0, 0],  # 1 is the anchor's own text
    ]
    np.testing.assert_array_equal(logits > -1, np.asarray(due, bool))


def test_an_example_has_an_axis_of_texts(tmp_path):
    task, records = learned.encoded(PAIRS, [ROW, {**ROW, "negatives": None}], tmp_path, length=5)
    whole, part = (task.make_example(records, i, None) for i in range(2))
    assert task.negatives == 2 and task.pooling == "mean"
    assert jax.tree.map(np.shape, whole) == jax.tree.map(np.shape, part)
    assert whole["inputs"]["attention_mask"].sum(axis=1).tolist() == [4, 3, 3, 5]
    texts = whole["targets"]["texts"].tolist()
    assert sorted(texts) == [0, 1, 2, 3] and whole["targets"]["weights"] == 1.0
    assert part["targets"]["texts"].tolist() == [*texts[:2], -1, -1]
    assert records.tokens_cut(0) == [0]


def test_pooling_takes_the_mean_or_the_first_token():
    hidden = [[[3.0, 4.0], [1.0, 0.0], [9.0, 9.0]], [[0.0, 2.0], [0.0, 1.0], [1.0, 0.0]]]
    output = types.SimpleNamespace(last_hidden_state=jnp.asarray(hidden))
    mask = np.asarray([[[1, 1, 0], [1, 1, 1]]])
    inputs = {"input_ids": np.zeros((1, 2, 3), int), "attention_mask": mask}
    due = {
        "first": [[0.6, 0.8], [0, 1]],
        "mean": [np.asarray([1, 1]) / 2**0.5, np.asarray([1, 3]) / 10**0.5],
    }
    for pooling, vectors in due.items():
        task = SentenceEmbeddings(pooling=pooling)
        found = task.outputs(lambda input_ids, attention_mask: output, inputs)
        np.testing.assert_allclose(found, [vectors], rtol=1e-6)


def test_the_baseline_compares_words(tmp_path):
    rows = [{"anchor": f"w{i} x", "positive": f"w{i} y"} for i in range(5)]
    task, records = learned.encoded(PAIRS, rows, tmp_path)
    data = tables.data_of(records)
    assert task.baseline(data, task.fit_baseline(data)) == ("tf-idf", 1.0)
    for i, row in enumerate(rows):
        row |= {"positive": f"w{i + (i > 2)} y", "score": float(i <= 2)}
    task, records = learned.encoded(SCORES, rows, tmp_path)
    data = tables.data_of(records)
    assert task.baseline(data, task.fit_baseline(data))[1] > 0.8


def test_sizes_are_below_the_width(tmp_path):
    cfg = learned.config(tmp_path, SentenceEmbeddings(sizes=(32,)), [ROW] * 10)
    with pytest.raises(ConfigError, match="sizes: 32 must be less than the vectors' width, 32"):
        learned.setup.prepare_experiment(cfg)


SENTENCES = Path(__file__).parents[1] / "fixtures" / "sentences"
PROMPT = "three four "


def test_prompts_are_trained_with_and_saved_as_sentence_transformers_reads_them(tmp_path):
    """One is named as in the files of the published encoder from which the run starts, the other
    is a text; both are the same here."""
    begun = Path(shutil.copytree(SENTENCES / "mean_normalize", tmp_path / "begun"))
    config = begun / "config_sentence_transformers.json"
    named = {"prompts": {"asks": PROMPT}}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    expected = json.loads((SENTENCES / "expected.json").read_text())
    first, second, third = expected["texts"]
    rows = [{"anchor": first, "positive": second}, {"anchor": second, "positive": third}]
    objective = SentenceEmbeddings(query_prompt="asks", document_prompt=PROMPT)
    page = to_config_dict(learned.config(tmp_path, objective, rows * 5, steps=1))
    page.train.init_from = str(begun)
    page.data.tokenizer.path = ""
    page.data.length = 8
    page.optimizer.learning_rate = 1e-20  # one step, which changes nothing
    flaxformer_lite.run(page, tmp_path / "run")
    pooling = json.dumps({"pooling_mode": "mean", "include_prompt": True})
    vectors = np.asarray(expected["poolings"][pooling])
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    due = [unit[0] @ unit[1], unit[1] @ unit[2]]
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published")])
    for name in ("run", "published"):
        told = learned.predict(tmp_path / name, tmp_path / "eval.jsonl")
        np.testing.assert_allclose([row["similarity"] for row in told], due, atol=1e-5)
    described = tmp_path / "published" / "config_sentence_transformers.json"
    assert json.loads(described.read_text())["prompts"] == {"query": PROMPT, "document": PROMPT}
    shutil.rmtree(begun)
    page.train.steps = 2
    flaxformer_lite.run(page, tmp_path / "run")  # goes on without the folder that names the prompt


@pytest.mark.parametrize("kind", [SentenceEmbeddings, SparseEmbeddings, LateInteraction])
def test_each_kind_of_vectors_takes_a_named_prompt(kind):
    facts = {"pooling": "mean", "prompts": (("asks", PROMPT),)}
    objective = kind(query_prompt="asks", document_prompt="says: ").adopt(facts)
    due = {"query": PROMPT, "document": "says: "}
    assert objective.task_prompts == due
    layers = trained_layers(objective.published_fields(), 8)
    assert dict(layers.prompts) == due
