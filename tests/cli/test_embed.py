import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from tests.cli import models

ROOT = Path(__file__).parents[1] / "fixtures" / "sentences"
TEXTS = ["zero one two", "four", "eight nine ten eleven zero one two three four five"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("bert"), "bert", "masked_lm")


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, ids):
    return model.apply({"params": params}, ids).last_hidden_state


def vectors(folder, text):
    """The encoder's vector of each token, without padding."""
    ids = np.asarray([load_tokenizer(folder).encode(text)])
    return np.asarray(forward(*load_pretrained(folder), ids))[0].astype(np.float64)


def alone(folder, text):
    """The vector of one text, by numpy."""
    return vectors(folder, text).mean(axis=0)


def run(command, model, *args):
    main([command, "--model", str(model), *map(str, args)])


def test_vectors_are_means_and_padding_does_not_matter(bert, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[1:]) + "\n\n")
    out = tmp_path / "vectors.npy"
    run("embed", bert, "--text", TEXTS[0], "--file", tmp_path / "texts.txt", "--output", out)
    assert "3 vectors of 16" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out), [alone(bert, text) for text in TEXTS], atol=1e-5)


def test_similarities_are_shown(bert, capsys):
    run("embed", bert, "--text", TEXTS[0], "--text", TEXTS[1])
    said = capsys.readouterr().out
    first, second = (alone(bert, text) for text in TEXTS[:2])
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert all(part in said for part in (f"{cosine:.4f}", "1.0000", TEXTS[0]))


def test_vectors_of_the_first_token(bert, tmp_path):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": f"models.{kind}"} for path, kind in modules]
    (bert / "modules.json").write_text(json.dumps(listed))
    (bert / "1_Pooling").mkdir()
    pooling = '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
    (bert / "1_Pooling" / "config.json").write_text(pooling)
    out = tmp_path / "vectors.npy"
    run("embed", bert, "--text", TEXTS[0], "--text", TEXTS[2], "--output", out)
    due = vectors(bert, TEXTS[0])[0]
    np.testing.assert_allclose(np.load(out)[0], due / np.linalg.norm(due), atol=1e-5)


def test_a_long_text_is_cut_and_that_is_said(bert, tmp_path, capsys):
    (bert / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    run("embed", bert, "--text", "four " * 9, "--text", "one", "--output", tmp_path / "v.npy")
    (bert / "sentence_bert_config.json").unlink()
    assert "notice: 1 of 2 texts are longer than 6 tokens" in capsys.readouterr().err


def test_an_encoder_decoder_gives_its_encoders(tmp_path, capsys):
    run("embed", models.directory(tmp_path, "t5"), "--text", "one", "--text", "two")
    assert capsys.readouterr().out.count("1.0000") == 2


@pytest.mark.parametrize(("name", "similarity"), [("sparse", "dot"), ("late", "maxsim")])
def test_vectors_of_other_kinds_are_saved_and_searched(tmp_path, capsys, name, similarity):
    out = tmp_path / "vectors.npz"
    run("embed", ROOT / name, "--text", "zero one", "--output", out, "--prompt", "")
    if name == "sparse":
        assert scipy.sparse.load_npz(out).nnz == 7
    else:
        saved = np.load(out)
        assert saved["vectors"].size == 4 * 6 and saved["lengths"].tolist() == [4]
    with pytest.raises(SystemExit):
        run("embed", ROOT / name, "--text", "zero", "--output", tmp_path / "vectors.npy")
    assert "are written to a file that ends in .npz" in capsys.readouterr().err
    texts = tmp_path / "texts.txt"
    texts.write_text("zero\none two\n\nthree one zero\n")
    run("similar", ROOT / name, "--text", "zero one", "--file", texts, "--top_k", "2")
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["zero", "one", similarity] and len(table) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--text zero", "must be given together"),
        ("--text zero --file FILE --word one", "run the command once for each"),
        ("--text zero --file FILE", "has no text"),
    ],
)
def test_texts_and_words_are_not_looked_for_together(flags, message, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n")
    with pytest.raises(SystemExit):
        run("similar", ROOT / "sparse", *flags.replace("FILE", f"{tmp_path}/texts.txt").split(" "))
    assert message in capsys.readouterr().err
