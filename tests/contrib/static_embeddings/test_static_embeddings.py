"""Static embeddings of sentence-transformers and Model2Vec, beside the vectors of both."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from tokenizers import models

from flaxformer_lite import load_pretrained, load_tokenizer, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.open_model import open_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.static_embeddings.static_tokenizer import StaticTokenizer
from flaxformer_lite.inference.embed import embed
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.sentences import read_sentence_layers

ROOT = Path(__file__).parents[2] / "fixtures" / "static"
EXPECTED = json.loads((ROOT / "expected.json").read_text())


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(ROOT / "model2vec", tmp_path / "model"))


def vectors_of(folder):
    return embed(open_model(folder), EXPECTED["texts"], read_sentence_layers(folder))


@pytest.mark.parametrize("name", EXPECTED["vectors"])
def test_vectors_are_those_of_the_reference(name, tmp_path):
    """With unknown words, no words, and more than Model2Vec's limit; also of a saved folder."""
    due = EXPECTED["vectors"][name]
    np.testing.assert_allclose(vectors_of(ROOT / name), due, atol=2e-7)
    model, params = load_pretrained(ROOT / name)
    save_pretrained(tmp_path / "again", model, params, like=ROOT / name)
    np.testing.assert_allclose(vectors_of(tmp_path / "again"), due, atol=2e-7)
    assert not (tmp_path / "again" / "0_StaticEmbedding").exists()


def test_a_model2vec_folder_says_itself_whether_vectors_have_length_one(folder):
    (folder / "modules.json").unlink()
    np.testing.assert_allclose(vectors_of(folder), EXPECTED["vectors"]["model2vec"], atol=2e-7)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_length": None}))
    assert load_tokenizer(folder).encode("one " * 700) == [5] * 700


def test_a_table_in_int8_is_read(folder):
    table = load_file(folder / "model.safetensors")["embeddings"]
    numbers = (table * 20).astype(np.int8)
    save_file({"embeddings": numbers}, folder / "model.safetensors")
    _, params = load_pretrained(folder)
    np.testing.assert_array_equal(params["token_embed"]["embedding"], numbers.astype(np.float32))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"mapping": np.arange(1, 9)}, r"do not fit each other \(index 8"),
        ({"weights": np.ones(3, np.float32)}, "do not fit each other"),
    ],
)
def test_a_damaged_table_is_refused(tensors, message, folder):
    table = load_file(folder / "model.safetensors")
    save_file(table | tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["sentence_transformers", "model2vec"])
def test_commands_take_static_embeddings(name, tmp_path, capsys, refusal):
    """Similarities of a table's pairs, retrieval and the vectors of texts."""
    texts = EXPECTED["texts"]
    vectors = np.asarray(EXPECTED["vectors"][name])
    table = tmp_path / "pairs.csv"
    table.write_text(f"anchor,positive,score\n{texts[0]},{texts[1]},1\n{texts[1]},{texts[4]},0.5\n")
    model = f"--model={ROOT / name}"
    main(["predict", model, f"--data={table}", f"--output={tmp_path / 'out.jsonl'}"])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    due = [vectors[0] @ vectors[1], vectors[1] @ vectors[4]]
    np.testing.assert_allclose([row["similarity"] for row in rows], due, atol=1e-6)
    table.write_text(f"query,document\n{texts[0]},{texts[1]}\n{texts[1]},{texts[4]}\n")
    main(["evaluate", model, f"--data={table}", "--retrieval", "--json"])
    assert '"queries": 2' in capsys.readouterr().out
    # WordLevel marks no beginning of words
    message = "no token of its vocabulary is a whole word"
    assert message in refusal("similar", model, "--word=zero")
    main(["embed", model, "--text", texts[0], "--text", texts[1]])
    assert f"{due[0]:.4f}" in capsys.readouterr().out


def test_a_static_embedding_is_not_trained():
    opened = open_model(ROOT / "model2vec")
    with pytest.raises(ConfigError, match="static embeddings are evaluated here, but trained by"):
        SentenceEmbeddings().fit_model(opened.cfg, opened.tokenizer)


def test_the_unknown_token_of_unigram_is_left_out():
    """Whose number the file gives, as 0 here."""
    library = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("</s>", 0.0)], 0))
    made = StaticTokenizer(library.to_str().encode(), {"model_type": "model2vec"})
    assert made.encode("aba") == [1, 1]
    assert StaticTokenizer(library.to_str().encode(), {}).encode("aba") == [1, 0, 1]
