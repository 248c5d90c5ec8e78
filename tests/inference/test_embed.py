"""Sparse and multi-vector models: their vectors, folders and similarities are those of
sentence-transformers."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite import load_embedder, load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.open_model import open_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.embed import MOST_WIDTHS, embed, plan_widths, similarity
from flaxformer_lite.pretrained.sentences import read_sentence_layers

ROOT = Path(__file__).parents[1] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "kinds.json").read_text())
TEXTS = EXPECTED["texts"]


@pytest.fixture(scope="module")
def opened():
    return {name: open_model(str(ROOT / name)) for name in ("sparse", "late")}


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def late(tmp_path):
    return Path(shutil.copytree(ROOT / "late", tmp_path / "late"))


def close(got, due):
    for one, other in zip(got, due, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_sparse_vectors_are_those_of_sentence_transformers(opened, tmp_path):
    folder = Path(shutil.copytree(ROOT / "sparse", tmp_path / "sparse"))
    layers = read_sentence_layers(folder)
    assert (layers.kind, layers.pooling, layers.similarity) == ("sparse", "max", "dot")
    due = EXPECTED["sparse"]
    vectors = embed(opened["sparse"], TEXTS, layers)
    assert vectors.shape == (3, 12) and vectors.nnz < 36
    close(vectors.toarray(), due["max relu"])
    close(similarity(layers)(vectors, vectors), due["similarity"])
    config = folder / "1_SpladePooling" / "config.json"
    edit(config, pooling_strategy="sum", activation_function="log1p_relu")
    other = embed(opened["sparse"], TEXTS, read_sentence_layers(folder))
    close(other.toarray(), due["sum log1p_relu"])
    edit(config, pooling_strategy="mean")
    with pytest.raises(ConfigError, match=r"pooling_strategy='mean':.*max"):
        read_sentence_layers(folder)
    (folder / "modules.json").write_text('[{"path": "", "type": "a.SpladePooling"}]')
    with pytest.raises(ConfigError, match="of sparse models, read are Transformer"):
        read_sentence_layers(folder)
    with pytest.raises(ConfigError, match="sparse vectors need a masked_lm head"):
        embed(opened["late"], TEXTS, layers)


def test_one_call_loads_what_turns_texts_into_vectors():
    embedder = load_embedder(ROOT / "late")
    queries = embedder.encode(TEXTS, task="query")
    close(queries, EXPECTED["late"]["queries attend=False"])
    documents = embedder.encode(TEXTS, task="document")
    close(embedder.similarity(queries, documents), EXPECTED["late"]["maxsim"])
    close(embedder.encode(iter(TEXTS), task="query"), queries)
    for wrong in ("one text", ["a", None], None):
        with pytest.raises(ConfigError, match=r"texts: must be a list of texts"):
            embedder.encode(wrong)
    with pytest.raises(ConfigError, match="prompt=5: must be a text"):
        embedder.encode(TEXTS, prompt=5)
    for size, said in (("8", "'8': must be a whole number"), (2, "2: multi_vector .* are not cut")):
        with pytest.raises(ConfigError, match=f"size={said}"):
            load_embedder(ROOT / "late", size=size)


def test_multi_vectors_are_those_of_sentence_transformers(opened, late):
    layers = read_sentence_layers(late)
    assert (layers.kind, layers.late.expansion, len(layers.dense)) == ("multi_vector", "fixed", 1)
    due = EXPECTED["late"]
    queries = embed(opened["late"], TEXTS, layers, task="query")
    documents = embed(opened["late"], TEXTS, layers, task="document")
    close(queries, due["queries attend=False"])
    close(documents, due["documents"])
    close(similarity(layers)(queries, documents), due["maxsim"])
    mean = similarity(layers._replace(similarity="meanmaxsim"))(queries, documents)
    close(mean, np.asarray(due["maxsim"]) / 6)
    close(embed(opened["late"], TEXTS, layers), due["neither"])
    expansion = {"strategy": "fixed", "length": 6, "token": "[UNK]", "attend": True}
    edit(late / "sentence_bert_config.json", query_expansion=expansion)
    attending = embed(opened["late"], TEXTS, read_sentence_layers(late), task="query")
    close(attending, due["queries attend=True"])
    expansion = {"strategy": "min", "length": 5, "token": "[UNK]"}
    edit(late / "sentence_bert_config.json", query_expansion=expansion)
    short = embed(opened["late"], TEXTS, read_sentence_layers(late), task="query")
    close(short, due["queries min"])


def test_folders_of_pylate_are_read_as_sentence_transformers_reads_them(opened, late, monkeypatch):
    """Marks, lengths and expansion lie in one file, and neither mask nor norm is a layer."""
    modules = json.loads((late / "modules.json").read_text())
    (late / "modules.json").write_text(json.dumps(modules[:2]))
    fields = json.loads((late / "1_Dense" / "config.json").read_text())
    kept = {name: fields[name] for name in fields if not name.startswith("module_")}
    (late / "1_Dense" / "config.json").write_text(json.dumps(kept))
    (late / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    described = {"model_type": "ColBERT", "query_prefix": "seven ", "document_prefix": "six "}
    described |= {"query_length": 6, "document_length": 7, "attend_to_expansion_tokens": False}
    described |= {"skiplist_words": ["three"], "similarity_fn_name": "cosine"}
    (late / "config_sentence_transformers.json").write_text(json.dumps(described))
    layers = read_sentence_layers(late)
    layers = layers._replace(late=layers.late._replace(expansion_token="[UNK]"))
    queries = embed(opened["late"], TEXTS, layers, task="query")
    close(queries, EXPECTED["late"]["queries attend=False"])
    close(embed(opened["late"], TEXTS, layers, task="document"), EXPECTED["late"]["documents"])
    assert layers.similarity == "maxsim" and layers.late.markers == ("seven ", "six ")
    cut = layers._replace(late=layers.late._replace(markers=("[unused0] ",)))
    tokenizer = opened["late"].tokenizer
    monkeypatch.setattr(tokenizer, "id_of", {"[unused0]": 5}.get)
    with pytest.raises(ConfigError, match=r"'\[unused0\]',.*documents"):
        embed(opened["late"], TEXTS, cut, task="query")


ACTIVATION = {"activation_function": "torch.nn.PReLU"}


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed"}}, "a positive len"),
        ("2_MultiVectorMask/config.json", {"skiplist_words": [1]}, "must be texts"),
        ("1_Dense/config.json", ACTIVATION, "of the tokens' vectors"),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "the tokens' vec"),
    ],
)
def test_other_multi_vector_layers_are_refused(late, file, values, message):
    edit(late / file, **values)
    with pytest.raises(ConfigError, match=message):
        read_sentence_layers(late)


@pytest.mark.parametrize("name", ["sparse", "late", "cls_dense"])
def test_what_lies_beside_the_weights_is_saved_again(tmp_path, name):
    save_pretrained(tmp_path / "again", *load_pretrained(ROOT / name))
    again = read_sentence_layers(tmp_path / "again")
    due = read_sentence_layers(ROOT / name)
    assert again._replace(dense=()) == due._replace(dense=())
    for ours, theirs in zip(again.dense, due.dense, strict=True):
        np.testing.assert_array_equal(ours.kernel_DO, theirs.kernel_DO)
        np.testing.assert_array_equal(ours.bias_O, theirs.bias_O)
        assert ours.activation == theirs.activation


@pytest.mark.parametrize("seed", range(5))
def test_few_widths_hold_all_texts_with_little_padding(seed):
    draw = np.random.default_rng(seed)
    lengths = np.sort(draw.integers(1, 513, size=40))
    widths = np.asarray(plan_widths(lengths.tolist(), 32))
    assert (widths >= lengths).all()
    assert len(set(widths.tolist())) <= MOST_WIDTHS
    assert lengths.sum() > 0.75 * widths.sum()
    assert plan_widths([3], 32) == [8]
    few = np.asarray([17, 33, 65, 100, 129, 300])
    assert (few > 0.5 * np.asarray(plan_widths(few.tolist(), 512))).all()


@pytest.mark.parametrize(("folder", "due"), [(None, [64, 64, 64]), ("programs", [32, 32, 64])])
def test_a_program_is_compiled_where_padding_takes_longer(folder, due):
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", folder)
    try:
        assert plan_widths([10, 30, 60], 20) == due
        assert plan_widths([10, 30, 60], 200) == [16, 32, 64]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_vectors_are_normalized_then_cut(tmp_path):
    """As by truncate_dim of sentence-transformers, whose vectors of this folder these are."""
    folder = Path(shutil.copytree(ROOT / "mean_normalize", tmp_path / "model"))
    texts = ["zero one two", "four"]
    model = open_model(str(folder))
    due = [[0.106600, 0.166053, -0.154501], [0.374702, -0.083717, 0.017765]]
    edit(folder / "config_sentence_transformers.json", truncate_dim=3)
    np.testing.assert_allclose(embed(model, texts, read_sentence_layers(folder)), due, atol=2e-6)
    out = str(tmp_path / "two.npy")
    main(["embed", "--model", str(folder), "--size", "2", "--text", texts[0], "--output", out])
    assert np.load(out).shape == (1, 2)
    with pytest.raises(ConfigError, match=r"size=4096: the model's vectors have \d+ values"):
        embed(model, texts, read_sentence_layers(folder).cut(4096, "--size"))
    with pytest.raises(ConfigError, match="--size=2: sparse vectors are not cut"):
        read_sentence_layers(ROOT / "sparse").cut(2, "--size")
