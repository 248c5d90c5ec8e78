import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.token_embeddings.objectives.sparse_embeddings import SparseEmbeddings
from flaxformer_lite.pretrained.sentences import read_sentence_layers
from tests.objectives import learned, tables
from tests.objectives.test_learning import synonyms

ROOT = Path(__file__).parents[2] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "kinds.json").read_text())["sparse"]


def test_the_loss_is_that_of_sentence_transformers():
    """SpladeLoss around SparseMultipleNegativesRankingLoss, of two rows with a negative each."""
    vectors = jnp.asarray(EXPECTED["max relu"], jnp.float32)
    rows = jnp.stack([vectors[:2], vectors[1:], vectors[jnp.asarray([2, 0])]], axis=1)
    targets = {"texts": jnp.arange(6).reshape(2, 3), "weights": jnp.ones(2)}
    task = SparseEmbeddings(query_flops=0.05, document_flops=0.02)
    padded = jnp.concatenate([rows, 9 * jnp.ones((1, 3, 12))])
    more = {"texts": jnp.arange(9).reshape(3, 3), "weights": jnp.asarray([1.0, 1.0, 0.0])}

    @jax.jit
    def both():
        pairs = ((rows, targets), (padded, more))
        return [task.loss(*pair, chunks=1).means() for pair in pairs]

    tokens = np.sum(np.asarray(EXPECTED["max relu"])[:2] > 0) / 2
    for metrics in both():
        assert float(metrics["loss"]) == pytest.approx(EXPECTED["loss"], rel=1e-6)
        assert float(metrics["query_tokens"]) == tokens


# its files, tests/pretrained/test_sentences.py; such a run, test_classification.py
@pytest.mark.nightly
def test_learns_weights_is_published_and_searches(tmp_path, capsys):
    task = SparseEmbeddings(query_flops=0.01, document_flops=0.01)
    cfg = learned.config(tmp_path, task, synonyms(300), length=6, steps=50)
    flaxformer_lite.run(cfg, tmp_path / "run")
    first, *_, last = tables.read_split(tmp_path / "run")
    assert last["accuracy"] > first["accuracy"] + 0.2
    assert last["query_tokens"] < 0.8 * first["query_tokens"]
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published")])
    layers = read_sentence_layers(tmp_path / "published")
    assert (layers.kind, layers.pooling, layers.limit) == ("sparse", "max", 6)
    rows = learned.write(tmp_path / "rows.jsonl", synonyms(40))
    capsys.readouterr()
    flags = ["--data", rows, "--retrieval", "--json"]
    main(["evaluate", "--model", str(tmp_path / "run"), *flags])
    assert json.loads(capsys.readouterr().out)["ndcg_10"] > 0.4
    main(["embed", "--model", str(tmp_path / "published"), "--text", "a1 a2"])
    assert "1: a1 a2\n   " in capsys.readouterr().out


def test_fields_that_sparse_vectors_lack_are_refused(tmp_path):
    cfg = learned.config(tmp_path, SparseEmbeddings(sizes=(8,)), synonyms(20), length=6)
    with pytest.raises(ConfigError, match="sparse_embeddings learns from pairs"):
        learned.setup.prepare_experiment(cfg)


def test_the_strategy_is_that_of_a_sparse_model_alone():
    assert SparseEmbeddings().adopt({"pooling": "sum"}).pooling == "sum"
    assert SparseEmbeddings().adopt({"pooling": "mean"}).pooling == ""
