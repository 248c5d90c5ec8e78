import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import registry
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError, plugin_name, to_config_dict
from flaxformer_lite.contrib.token_embeddings.objectives.late_interaction import LateInteraction
from flaxformer_lite.pretrained.sentences import read_sentence_layers
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.objectives import learned, tables
from tests.objectives.test_learning import synonyms

ROOT = Path(__file__).parents[2] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "kinds.json").read_text())["late"]


@pytest.fixture(autouse=True)
def words_with_a_mask(monkeypatch):
    monkeypatch.setattr(learned, "SPECIALS", [*learned.SPECIALS, "[MASK]"])


def padded(texts):
    rows = np.zeros((len(texts), 8, 6), np.float32)
    for row, vectors in enumerate(texts):
        rows[row, : len(vectors)] = vectors
    return jnp.asarray(rows)


def test_the_loss_is_that_of_sentence_transformers():
    """Cross entropy of the MaxSim of its vectors; padding of the batch and of texts has no part."""
    queries = padded(EXPECTED["queries attend=False"])
    documents = padded(EXPECTED["documents"])
    outputs = jnp.stack([queries, documents], axis=1)
    more = jnp.concatenate([outputs, outputs[:1]])

    @jax.jit
    def losses():
        task = LateInteraction(temperature=0.5)
        all_ = {"texts": jnp.arange(8).reshape(4, 2), "weights": jnp.asarray([1.0, 1.0, 1.0, 0.0])}
        first = jax.tree.map(lambda x: x[:3], all_)
        return [task.loss(*pair, chunks=1).mean() for pair in ((outputs, first), (more, all_))]

    np.testing.assert_allclose(losses(), EXPECTED["loss"], rtol=1e-5)


@pytest.mark.nightly  # as of test_sparse_embeddings.py
def test_learns_is_published_and_searches(tmp_path, capsys):
    """Queries are filled with mask tokens in training as they are when the result is used."""
    task = LateInteraction(query_length=8, query_prompt="b1 ", temperature=0.2)
    cfg = learned.config(tmp_path, task, synonyms(300), length=16, steps=40)
    flaxformer_lite.run(cfg, tmp_path / "run")
    first, *_, last = tables.read_split(tmp_path / "run")
    assert last["accuracy"] > first["accuracy"] + 0.2
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published")])
    layers = read_sentence_layers(tmp_path / "published")
    assert layers.prompts == (("query", "b1 "), ("document", ""))
    assert (layers.late.expansion, layers.late.expansion_length) == ("fixed", 8)
    rows = learned.write(tmp_path / "rows.jsonl", synonyms(40))
    capsys.readouterr()
    flags = ["--data", rows, "--retrieval", "--json"]
    main(["evaluate", "--model", str(tmp_path / "published"), *flags])
    assert json.loads(capsys.readouterr().out)["ndcg_10"] > 0.4


def test_an_example_fills_the_query(tmp_path):
    row = {"anchor": "a", "positive": "b ! c", "negatives": None, "score": None}
    task = LateInteraction(query_length=4, skip_punctuation=True)
    task, records = learned.encoded(task, [row], tmp_path, length=6)
    inputs = task.make_example(records, 0, None)["inputs"]
    mask = records.tokenizer.mask_id
    assert inputs["input_ids"][0].tolist().count(mask) == 1
    assert inputs["attention_mask"].sum(axis=1).tolist() == [3, 5]
    assert inputs["counts"].sum(axis=1).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sizes": (8,), "query_length": 6}, "late_interaction learns from pairs"),
        ({"query_length": 32}, r"query_length=32:.*most.*data.length=32"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, fields, message):
    cfg = learned.config(tmp_path, LateInteraction(**fields), synonyms(20), length=6)
    with pytest.raises(ConfigError, match=message):
        learned.setup.prepare_experiment(cfg)


def test_a_projection_is_not_dropped_without_a_word(tmp_path):
    values = to_config_dict(learned.config(tmp_path, LateInteraction(), synonyms(20), length=32))
    values.train.init_from = str(ROOT / "late")
    values.data.tokenizer.path = ""
    with pytest.raises(ConfigError, match=r"dense.*not trained"):
        read_experiment(values)


def test_queries_are_filled_only_where_there_is_a_mask_token(tmp_path, monkeypatch):
    monkeypatch.setattr(learned, "SPECIALS", learned.SPECIALS[:-1])
    cfg = learned.config(tmp_path, LateInteraction(query_length=6), synonyms(20), length=6)
    with pytest.raises(ConfigError, match=r"objective.expand=True: .*False"):
        learned.setup.prepare_experiment(cfg)


def test_an_objective_of_contrib_is_known_by_its_file_as_those_of_the_core():
    assert plugin_name(LateInteraction()) == "late_interaction"
    assert registry.resolve_class("objectives", "late_interaction") is LateInteraction
